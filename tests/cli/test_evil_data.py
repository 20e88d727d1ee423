"""Nothing that others wrote to a server, and no name that is typed, can drive a terminal."""

from __future__ import annotations

import json

import pytest

from chasquimq import Queue, RepeatPattern
from chasquimq.wire.envelope import encode_envelope
from chasquimq.wire.payload import encode_payload
from chasquimq.wire.stream_entry import encode_member
from support.command import ESCAPES
from support.screen import CONTROL, lines_of

# Clears the screen, rings, breaks the line, turns the direction, and begins a control in one byte.
EVIL = "a\x1b[2J\x1b]0;title\x07\n\u202eb\u2066c\x9b31m\x7f"
BROKEN = b"\xff\xfe\x80\xc3"
QUEUE = "QUEUE"
LOOKS = {
    "delayed list": ("delayed", "list", QUEUE),
    "dlq export": ("dlq", "export", QUEUE),
    "dlq peek": ("dlq", "peek", QUEUE),
    "doctor": ("doctor", QUEUE),
    "events": ("events", QUEUE, "--from", "0", "--count", "2"),
    "inspect": ("inspect", QUEUE),
    "job show, ready": ("job", "show", QUEUE, f"ready{EVIL}"),
    "job show, delayed": ("job", "show", QUEUE, f"delayed{EVIL}"),
    "job show, dead": ("job", "show", QUEUE, f"dead{EVIL}"),
    "queues": ("queues",),
    "repeatable list": ("repeatable", "list", QUEUE),
    "repeatable quarantined": ("repeatable", "quarantined", QUEUE),
    "watch": ("watch", QUEUE, "--count", "1"),
    "workers": ("workers", QUEUE),
}
ACTS = {
    "add, name": ("add", QUEUE, EVIL),
    "add, id": ("add", QUEUE, "n", "1", "--job-id", f"new{EVIL}"),
    "add, data": ("add", QUEUE, "n", json.dumps(EVIL)),
    "delayed cancel": ("delayed", "cancel", QUEUE, EVIL, f"delayed{EVIL}", "--yes"),
    "dlq purge": ("dlq", "purge", QUEUE, "--name", EVIL, "--yes"),
    "dlq replay": ("dlq", "replay", QUEUE, "--reason", EVIL, "--yes"),
    "repeatable remove": ("repeatable", "remove", QUEUE, EVIL, "--yes"),
    "repeatable run": ("repeatable", "run", QUEUE, EVIL),
    "repeatable run, unknown": ("repeatable", "run", QUEUE, f"no{EVIL}"),
    "job show, unknown": ("job", "show", QUEUE, f"no{EVIL}"),
    "events, filters": ("events", QUEUE, "--from", "0", "--event", EVIL, "--count", "1"),
    "dlq peek, filters": ("dlq", "peek", QUEUE, "--name", EVIL, "--reason", EVIL),
}
UNTYPED = {
    "add, name": ("add", QUEUE, "caf\udce9"),
    "add, id": ("add", QUEUE, "n", "1", "--job-id", "caf\udce9"),
    "delayed cancel": ("delayed", "cancel", QUEUE, "caf\udce9", "--yes"),
    "job show": ("job", "show", QUEUE, "caf\udce9"),
    "repeatable remove": ("repeatable", "remove", QUEUE, "caf\udce9", "--yes"),
    "repeatable run": ("repeatable", "run", QUEUE, "caf\udce9"),
    "group": ("workers", QUEUE, "--group", "caf\udce9"),
    "place": ("events", QUEUE, "--from", "caf\udce9"),
    "dlq id": ("dlq", "replay", QUEUE, "--yes", "--id", "caf\udce9"),
}
pytestmark = pytest.mark.takes_turns


@pytest.fixture
async def haunted(url, queue_name, raw):
    """A queue on which somebody wrote the worst into every place that takes text."""
    keys = raw.keys
    name = EVIL.encode()
    for evil in (name, BROKEN):
        await raw("XADD", keys.dlq, "*", "d", _job(f"dead{EVIL}"), "source_id", evil, "n", evil,
                  "reason", evil, "detail", evil, "error", evil, "fp", evil, evil, evil)  # fmt: skip
        await raw(
            "XADD", keys.events, "*", "e", evil, "id", evil, "n", evil, "ts", evil, evil, evil
        )
        await raw("XADD", keys.stream, "*", "d", evil, "n", evil)
        await raw("HSET", keys.repeat_bad, evil, evil)
        await raw("ZADD", keys.delayed, 1, evil)
    await raw("XADD", keys.stream, "*", "d", _job(f"ready{EVIL}"), "n", name)
    await raw("ZADD", keys.delayed, 1, encode_member(EVIL, _job(f"delayed{EVIL}")))
    for group in (b"default", b"evil" + name):
        await raw("XGROUP", "CREATE", keys.stream, group, "0")
    for consumer in (name, BROKEN):
        await raw(
            "XREADGROUP", "GROUP", "default", consumer, "COUNT", 1, "STREAMS", keys.stream, ">"
        )
    for lock in (keys.promoter_lock, keys.scheduler_lock):
        await raw("SET", lock, name)
    async with Queue(queue_name, redis_url=url) as queue:
        await queue.upsert_repeatable_job(EVIL, EVIL, repeat=RepeatPattern.every(60_000), key=EVIL)


@pytest.fixture
async def strangers(raw):
    """Keys that look like those of queues whose names cannot be."""
    names = [f"stranger{EVIL}".encode(), b"stranger" + BROKEN, b"a stranger", b""]
    keys = [b"{chasqui:" + name + b"}:stream" for name in names]
    for key in keys:
        await raw("XADD", key, "*", "d", "x")
    yield
    await raw("DEL", *keys)


@pytest.mark.parametrize("look", LOOKS)
async def test_a_look_shows_it_escaped(say, haunted, strangers, queue_name, look):
    said = await say(*_of(queue_name, LOOKS[look]))

    assert said.code in (0, 1)
    assert CONTROL.search(said.out + said.err) is None
    complaints = [line for line in said.err.splitlines() if line.startswith("error: ")]
    assert not any(queue_name in line for line in complaints), "others may have broken queues"


@pytest.mark.parametrize("look", [look for look in LOOKS if look != "dlq export"])
async def test_a_program_reads_it_whole(say, haunted, strangers, queue_name, look):
    said = await say(*_of(queue_name, LOOKS[look]), "--json")

    is_a_line_each = look in ("events", "watch")
    documents = said.out.splitlines() if is_a_line_each else [said.out]
    assert all(json.loads(document) is not None for document in documents)
    assert CONTROL.search(said.out + said.err) is None


async def test_what_is_escaped_for_eyes_is_exact_for_programs(say, haunted, queue_name):
    dead = (await say("dlq", "peek", queue_name, "--json")).json["entries"][0]
    plan = (await say("repeatable", "list", queue_name, "--json")).json[0]
    working = (await say("workers", queue_name, "--json")).json

    assert (dead["name"], dead["reason"], dead["job_id"]) == (EVIL, EVIL, f"dead{EVIL}")
    assert (plan["key"], plan["job_name"]) == (EVIL, EVIL)
    assert EVIL in [one["worker"] for one in working]


@pytest.mark.parametrize("look", LOOKS)
async def test_a_terminal_is_not_driven(terminal, haunted, strangers, queue_name, look):
    shown = await terminal(*_of(queue_name, LOOKS[look]), columns=100)

    drawn = ESCAPES.sub("", shown.out).replace("\r", "").replace("\t", "")
    assert "\x1b]" not in shown.out
    assert CONTROL.search(drawn) is None
    assert "Traceback" not in drawn
    # One clearing of the screen is the watch's own.
    assert shown.out.count("\x1b[2J") == (1 if look == "watch" else 0)
    assert lines_of(shown.out)


@pytest.mark.parametrize("act", ACTS)
async def test_a_name_that_is_typed_is_shown_escaped(say, haunted, queue_name, act):
    said = await say(*_of(queue_name, ACTS[act]))

    assert said.code in (0, 1)
    assert CONTROL.search(said.out + said.err) is None
    assert said.err.count("\n") <= 1


@pytest.mark.parametrize(
    "words",
    [("delayed", "cancel", "a\u202eb", EVIL), ("repeatable", "remove", "a\u202eb", EVIL)],
    ids=lambda words: " ".join(words[:2]),
)
async def test_a_question_shows_names_escaped(terminal, words):
    asked = await terminal(*words, keys=b"n\n", columns=200)

    assert asked.code == 1
    assert "a\\u202eb" in asked.out
    assert CONTROL.search(asked.out) is None


@pytest.mark.parametrize("act", UNTYPED)
async def test_a_name_that_is_no_text_is_refused_in_one_line(say, queue, queue_name, act):
    await queue.add("a", 1)

    said = await say(*_of(queue_name, UNTYPED[act]))

    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("error: ")
    assert said.err.endswith("got 'caf\\udce9'\n")
    assert said.err.count("\n") == 1


@pytest.mark.parametrize("words", [("queues",), ("metrics",), ("doctor",)], ids=" ".join)
async def test_keys_of_no_queue_are_passed_over(say, queue, queue_name, strangers, words):
    await queue.add("a", 1)

    said = await say(*words)

    assert queue_name in said.out
    assert "stranger" not in said.out + said.err


def _job(job_id: str) -> bytes:
    return encode_envelope(job_id, encode_payload({EVIL: [EVIL, b"\xff"]}), 1_700_000_000_000)


def _of(queue_name: str, words: tuple[str, ...]) -> list[str]:
    return [queue_name if word == QUEUE else word for word in words]
