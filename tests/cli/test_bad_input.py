"""Whatever is wrong, each command that takes a queue says so in one line and ends with its code."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path
from urllib.parse import urlsplit

import click
import pytest

from chasquimq.cli.app import COMMANDS, load_command
from support.command import Said
from support.screen import CONTROL

NOBODY = "redis://me:canary@127.0.0.1:1"
TYPES = {
    "stream": "stream", "dlq": "stream", "delayed": "zset", "repeat": "zset", "events": "stream",
    "history": "stream", "dix": "hash", "repeat_bad": "hash",
}  # fmt: skip
# Places that every look at a queue counts.
COUNTED = ("stream", "dlq", "delayed", "repeat")
# Places that only these look into.
OWN_PLACES = [
    ("add", "stream"), ("events", "events"), ("delayed cancel", "dix"), ("job show", "dix"),
    ("repeatable quarantined", "repeat_bad"), ("repeatable remove", "repeat_bad"),
]  # fmt: skip
QUEUE = "QUEUE"
EXPORT = str(Path(__file__).with_name("one-dead-job.jsonl"))
TAKING = {
    "add": ("add", QUEUE, "n"),
    "delayed cancel": ("delayed", "cancel", QUEUE, "some-id", "--yes"),
    "delayed list": ("delayed", "list", QUEUE),
    "dlq edit": ("dlq", "edit", QUEUE, "some-id", "--data", "1", "--yes"),
    "dlq export": ("dlq", "export", QUEUE),
    "dlq import": ("dlq", "import", QUEUE, EXPORT, "--yes"),
    "dlq peek": ("dlq", "peek", QUEUE),
    "dlq purge": ("dlq", "purge", QUEUE, "--all", "--yes"),
    "dlq replay": ("dlq", "replay", QUEUE, "--yes"),
    "dlq triage": ("dlq", "triage", QUEUE),
    "doctor": ("doctor", QUEUE),
    "drain": ("drain", QUEUE, "--yes"),
    "events": ("events", QUEUE, "--from", "0", "--count", "1"),
    "group list": ("group", "list", QUEUE),
    "group remove": ("group", "remove", QUEUE, "some-group", "--yes"),
    "inspect": ("inspect", QUEUE),
    "job show": ("job", "show", QUEUE, "some-id"),
    "metrics": ("metrics", QUEUE),
    "repeatable list": ("repeatable", "list", QUEUE),
    "repeatable quarantined": ("repeatable", "quarantined", QUEUE),
    "repeatable remove": ("repeatable", "remove", QUEUE, "some-key", "--yes"),
    "repeatable run": ("repeatable", "run", QUEUE, "some-key"),
    "watch": ("watch", QUEUE, "--count", "1"),
    "workers": ("workers", QUEUE),
}
# This one asks the tables of a lake, and no server.
OF_A_LAKE = {"dlq outcome"}
# These go on for ever where nothing is wrong, and have tests of their own below.
LASTING = {"upkeep", "worker"}
# Where there is no queue yet, these make one or wait for it.
PATIENT = {"add", "dlq import", "events"}
# The doctor's answer is the finding.
LOOKING = [name for name in TAKING if name != "doctor"]
BAD_NAMES = {
    "broken UTF-8": "caf\udce9",
    "escape sequence": "a\x1b[2Jb",
    "newline": "a\nb",
    "control of one byte": "a\x9bb",
    "nothing": "",
    "blank": " ",
    "braces": "{a}",
    "too long": "q" * 129,
}
pytestmark = pytest.mark.takes_turns


@pytest.fixture
async def filled(queue, raw):
    await queue.add("a", 1)
    await raw("XADD", raw.keys.events, "*", "e", "waiting", "id", "some-id")


@pytest.fixture
async def spoil(raw):
    """Put another kind of value into a key; gone after the test, because others list all queues."""
    spoilt = []

    async def put(place: str) -> str:
        key = getattr(raw.keys, place)
        spoilt.append(key)
        await raw("DEL", key)
        await raw("SET", key, "somebody else's")
        return key

    yield put
    await raw("DEL", *spoilt)


def of(name: str, queue: str) -> list[str]:
    return [queue if word == QUEUE else word for word in TAKING[name]]


def assert_one_line(said: Said, beginning: str = "error: ", code: int = 1) -> None:
    assert said.code == code
    assert said.err.startswith(beginning), said.err
    assert said.err.count("\n") == 1
    assert said.err.endswith("\n")
    assert CONTROL.search(said.err) is None


def test_every_command_that_takes_a_queue_is_tried_here():
    taking = {words for words, command in _leaves() if _takes_a_queue(command)}

    assert taking == set(TAKING) | LASTING | OF_A_LAKE


@pytest.mark.parametrize("name", [name for name in TAKING if name not in PATIENT])
async def test_a_queue_that_is_not_there_is_told_with_those_that_are(say, filled, queue_name, name):
    said = await say(*of(name, f"{queue_name}x"))

    assert_one_line(said, f"error: no queue named '{queue_name}x'; queues: {queue_name}")


@pytest.mark.parametrize(
    ("name", "place"),
    [*product([name for name in LOOKING if name != "add"], COUNTED), *OWN_PLACES],
    ids=lambda value: value,
)
async def test_a_key_of_the_wrong_type_is_told_by_its_name(
    say, filled, queue_name, spoil, name, place
):
    key = await spoil(place)

    said = await say(*of(name, queue_name))

    assert_one_line(said)
    assert said.err == (
        f"error: the key {key} must hold a {TYPES[place]}, found a string; "
        "rename or delete the key\n"
    )


@pytest.mark.parametrize("place", ["events", "history", "dix", "repeat_bad"])
async def test_a_key_that_a_look_does_not_need_does_not_stop_it(
    say, filled, queue_name, spoil, place
):
    await spoil(place)

    said = await say("inspect", queue_name)

    assert (said.code, said.err) == (0, "")


@pytest.mark.parametrize("place", TYPES)
async def test_the_doctor_finds_a_key_of_the_wrong_type(say, filled, queue_name, spoil, place):
    key = await spoil(place)

    said = await say("doctor", queue_name)

    assert (said.code, said.err) == (1, "")
    assert f"the key {key} must hold a {TYPES[place]}, found a string" in said.out


@pytest.mark.parametrize("name", LOOKING)
async def test_a_server_that_is_not_there_is_one_line_without_its_password(say, name):
    said = await say(*of(name, "q"), server=NOBODY)

    assert_one_line(said, "error: a server must answer at redis://me:***@127.0.0.1:1, found none")
    assert said.out == ""


async def test_the_doctor_finds_that_the_server_is_not_there(say):
    said = await say("doctor", "q", server=NOBODY)

    assert (said.code, said.err) == (1, "")
    assert "a server must answer at redis://me:***@127.0.0.1:1, found none" in said.out


@pytest.mark.parametrize("name", LOOKING)
async def test_a_wrong_password_is_one_line_that_does_not_hold_it(say, locked, name):
    said = await say(*of(name, "q"), server=locked)

    assert_one_line(said, "error: the server at ")
    assert "must accept the credentials" in said.err
    assert "canary" not in said.err


async def test_the_doctor_finds_that_the_password_is_wrong(say, locked):
    said = await say("doctor", "q", server=locked)

    assert (said.code, said.err) == (1, "")
    assert "must accept the credentials" in said.out
    assert "canary" not in said.out


@pytest.mark.parametrize("bad", BAD_NAMES.values(), ids=BAD_NAMES)
@pytest.mark.parametrize("name", TAKING)
async def test_a_name_that_no_queue_can_have_is_refused_in_one_line(say, name, bad):
    said = await say(*of(name, bad))

    assert_one_line(said, "error: queue name must be", code=2)
    assert said.out == ""


SERVERLESS = TAKING | {
    "upkeep": ("upkeep", QUEUE),
    "metrics of two": ("metrics", "q", QUEUE),
    "group of the metrics": ("metrics", "--group", QUEUE),
    "group of the upkeep": ("upkeep", "q", "--group", QUEUE),
}


@pytest.mark.parametrize("words", SERVERLESS.values(), ids=SERVERLESS)
async def test_such_a_name_is_refused_without_a_server_and_starts_none(
    serverless_chasqui, tmp_path, words
):
    said = await serverless_chasqui(*("a b" if word == QUEUE else word for word in words))

    assert said.code == 2
    assert re.match("error: (queue|group) name must be free of white space", said.err), said.err
    assert list(tmp_path.iterdir()) == []


REFUSED = {
    "a URL of another kind": ("inspect", "q", "--redis-url", "http://example.org"),
    "a URL for the doctor": ("doctor", "--redis-url", "http://example.org"),
    "a name with a space": ("add", "bad name", "ok"),
    "a group with braces": ("metrics", "--group", "{a}"),
    "no duration": ("worker", "tasks:run", "--queue", "q", "--lease", "soon"),
    "a trigger of nothing": ("pipeline", "run", "--trigger", "0s"),
    "a master of nothing": ("pipeline", "once", "--master", "foo"),
    "a queue of the pipeline": ("pipeline", "once", "--queue", "a b"),
    "a URL of the pipeline": ("pipeline", "once", "--redis-url", "http://example.org"),
}


@pytest.mark.parametrize("words", REFUSED.values(), ids=REFUSED)
async def test_what_no_server_could_make_right_is_wrong_usage(program, url, words):
    said = await program(*words, CHASQUI_REDIS_URL=url)

    assert (said.code, said.out) == (2, "")
    assert "Traceback" not in said.err
    assert said.err.splitlines()[0].startswith("error: ")


@pytest.fixture
async def locked(raw, queue_name, url):
    """A URL with the wrong password of a user that is there."""
    await raw("ACL", "SETUSER", queue_name, "on", ">right", "~*", "+@all")
    parts = urlsplit(url)
    yield parts._replace(netloc=f"{queue_name}:canary@{parts.netloc}").geturl()
    await raw("ACL", "DELUSER", queue_name)


LASTING_WORDS = {
    "upkeep": ("upkeep", QUEUE),
    "worker": ("worker", "tasks:run", "--queue", QUEUE),
    "workers of a fleet": ("worker", "tasks:run", "--queue", QUEUE, "--processes", "2"),
}


@pytest.fixture
def lasting(program, tmp_path):
    """Run a command that should not go on, to its end."""
    (tmp_path / "tasks.py").write_text("async def run(job): ...\n")

    async def start(name: str, queue: str, **variables: str) -> Said:
        words = [queue if word == QUEUE else word for word in LASTING_WORDS[name]]
        return await program(*words, **variables)

    return start


@pytest.mark.parametrize("place", ["stream", "dlq", "delayed", "repeat"])
@pytest.mark.parametrize("name", LASTING_WORDS)
async def test_what_would_fail_for_ever_does_not_begin(
    lasting, filled, queue_name, spoil, name, place
):
    key = await spoil(place)

    said = await lasting(name, queue_name)

    assert_one_line(said, f"error: the key {key} must hold a {TYPES[place]}, found a string")


@pytest.mark.parametrize("name", ["upkeep", "worker"])
async def test_what_lasts_needs_a_server_that_is_there(lasting, name):
    said = await lasting(name, "q", CHASQUI_REDIS_URL=NOBODY)

    assert_one_line(said, "error: a server must answer at redis://me:***@127.0.0.1:1, found none")


@pytest.mark.parametrize("name", ["upkeep", "worker"])
async def test_what_lasts_needs_the_right_password(lasting, locked, name):
    said = await lasting(name, "q", CHASQUI_REDIS_URL=locked)

    assert_one_line(said, "error: the server at ")
    assert "canary" not in said.err


@pytest.mark.parametrize("name", ["upkeep", "worker"])
async def test_what_lasts_needs_a_name_that_a_queue_can_have(lasting, name):
    said = await lasting(name, "a\x1b[2Jb")

    assert said.code == 2
    assert "queue name must be free of white space, control characters" in said.err
    assert CONTROL.search(said.err) is None
    assert said.err.count("\n") == 1


def _leaves() -> list[tuple[str, click.Command]]:
    found = []
    # What reads a lake has tests of its own.
    for name in COMMANDS.keys() - {"pipeline", "spark"}:
        command = load_command(COMMANDS[name].target)
        if isinstance(command, click.Group):
            ctx = click.Context(command)
            subs = [(sub, command.get_command(ctx, sub)) for sub in command.list_commands(ctx)]
            found += [(f"{name} {sub}", one) for sub, one in subs if one is not None]
        else:
            found.append((name, command))
    return found


def _takes_a_queue(command: click.Command) -> bool:
    return any(param.name in ("queue", "queues", "queue_name") for param in command.params)
