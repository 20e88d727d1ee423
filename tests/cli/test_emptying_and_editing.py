"""Commands that empty a queue, cancel by filter, edit one dead job, and import what was exported."""

from __future__ import annotations

import json
import os
import stat
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest

from chasquimq import Worker
from chasquimq.errors import ServerRefused

pytestmark = pytest.mark.takes_turns

HOUR_MS = 3_600_000


@pytest.fixture
async def filled(queue):
    await queue.add_bulk([{"name": "now", "data": at} for at in range(12)])
    await queue.add_bulk(
        [{"name": "ab"[at % 2], "data": at, "job_id": f"{'xy'[at % 2]}-{at}",
          "delay_ms": HOUR_MS * (at + 1)} for at in range(20)]
    )  # fmt: skip
    return queue


async def test_a_drain_asks_for_the_name_and_says_what_it_removed(chasqui, filled, queue_name):
    refused = await chasqui("drain", queue_name, stdin=b"y\n")
    asked = await chasqui("drain", queue_name, "--dry-run", "--delayed")
    done = await chasqui("drain", queue_name, stdin=f"{queue_name}\n".encode())
    rest = await chasqui("drain", queue_name, "--delayed", "--yes", "--json")

    assert (refused.code, refused.out) == (1, "")
    assert f"12 ready jobs of {queue_name} will be removed" in refused.err
    assert asked.out == "would remove 12 ready and 20 delayed jobs\n"
    assert (done.code, done.out) == (0, "removed 12 ready jobs\n")
    assert rest.json == {
        "queue": queue_name, "dry_run": False, "ready": 0, "delayed": 20, "running": 0,
    }  # fmt: skip


async def test_a_drain_leaves_running_jobs_and_says_so(chasqui, filled, queue_name, raw):
    with suppress(ServerRefused):  # an add makes it on some servers
        await raw("XGROUP", "CREATE", raw.keys.stream, "default", "0", "MKSTREAM")
    await raw("XREADGROUP", "GROUP", "default", "w", "COUNT", 2, "STREAMS", raw.keys.stream, ">")

    said = await chasqui("drain", queue_name, "--yes")

    assert said.out == "removed 10 ready jobs; 2 held by workers go on\n"


async def test_delayed_jobs_are_cancelled_by_filter_after_a_look_at_them(
    chasqui, filled, queue_name
):
    words = ("delayed", "cancel", queue_name, "--name", "a")
    looked = await chasqui(*words, "--dry-run")
    refused = await chasqui(*words, stdin=b"y\n")
    done = await chasqui(*words, stdin=f"{queue_name}\n".encode())

    assert looked.out == "would cancel 10 delayed jobs\n"
    assert looked.err.startswith("x-0  a  20")
    assert refused.code == 1
    assert f"10 delayed jobs of {queue_name} will be cancelled" in refused.err
    assert done.out == "cancelled 10 delayed jobs\n"


@pytest.mark.parametrize(
    ("options", "count"),
    [
        (("--id-prefix", "x-"), 10),
        (("--due-before", "150m"), 2),
        (("--due-after", "150m", "--limit", "5"), 5),
        (("--due-before", f"{datetime.now(UTC) + timedelta(hours=5.5):%Y-%m-%dT%H:%M:%SZ}"), 5),
        (("--name", "nobody"), 0),
    ],
)
async def test_times_are_instants_or_durations_from_now(
    chasqui, filled, queue_name, options, count
):
    said = await chasqui("delayed", "cancel", queue_name, *options, "--yes", "--json")

    assert (said.json["cancelled"], said.json["matched"]) == (count, count)
    assert len(said.json["sample"]) == min(count, 10)


@pytest.mark.parametrize(
    "words",
    [(), ("--limit", "5"), ("id", "--name", "a"), ("id", "--dry-run"), ("--due-before", "soon")],
)
async def test_what_would_be_cancelled_must_be_said_in_one_way(bare_chasqui, words):
    said = await bare_chasqui("delayed", "cancel", "q", *words, "--yes")

    assert said.code == 2
    assert said.err.startswith(("error: say what to cancel", "error: invalid value"))


@pytest.fixture
async def dead(queue, url, queue_name):
    """Two dead jobs; the answer is their entries."""

    async def refuse(job) -> None:
        raise ValueError("no such address")

    await queue.add_bulk(
        [{"name": "mail", "data": {"to": f"ana{at}@example", "raw": b"\xff"}, "attempts": 1,
          "job_id": f"mail-{at}"} for at in range(2)]
    )  # fmt: skip
    await Worker(queue_name, refuse, redis_url=url).run_until_idle()
    return await queue.peek_dlq()


async def data_of(queue, url, queue_name) -> list:
    seen = []

    async def take(job) -> None:
        seen.append(job.data)

    await Worker(queue_name, take, redis_url=url).run_until_idle()
    return seen


async def test_one_dead_job_is_edited_by_path_and_sent_back(chasqui, dead, queue, url, queue_name):
    words = ("dlq", "edit", queue_name, "mail-1", "--set", "$.to=ana@example.org")
    dry = await chasqui(*words, "--dry-run")
    refused = await chasqui(*words, stdin=b"n\n")
    done = await chasqui(*words, "--yes")

    assert '-  "to": "ana1@example"' in dry.err
    assert '+  "to": "ana@example.org"' in dry.err
    assert (refused.code, refused.out) == (1, "")
    assert done.out == "replayed 1 of 2 entries\n"
    assert await data_of(queue, url, queue_name) == [{"to": "ana@example.org", "raw": b"\xff"}]
    assert [one["job_id"] for one in await queue.peek_dlq()] == ["mail-0"]


async def test_all_of_the_data_is_replaced_by_its_dlq_id(chasqui, dead, queue, url, queue_name):
    data = json.dumps({"to": "new", "raw": {"$base64": "AAE="}})
    done = await chasqui(
        "dlq", "edit", queue_name, dead[0]["dlq_id"], "--data", data, "--yes", "--json"
    )

    assert done.json["replayed"] == 1
    assert await data_of(queue, url, queue_name) == [{"to": "new", "raw": b"\x00\x01"}]


def editor(folder, text: str) -> str:
    """A program that changes the file it is given."""
    path = folder / "editor"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


async def test_the_data_is_opened_in_an_editor(chasqui, dead, queue, url, queue_name, tmp_path):
    program = editor(tmp_path, 'sed -i s/ana0/bob/ "$1"')
    done = await chasqui("dlq", "edit", queue_name, "mail-0", "--yes", EDITOR=program)

    assert done.code == 0, done.err
    assert await data_of(queue, url, queue_name) == [{"to": "bob@example", "raw": b"\xff"}]


@pytest.mark.parametrize(
    ("script", "code", "sentence"),
    [
        ("true", 1, "error: the edit must change the data, and changes nothing"),
        ('echo "{" > "$1"', 1, "error: data must be JSON"),
        ("exit 3", 1, "ended with code 3; nothing was changed"),
    ],
)
async def test_an_edit_that_comes_to_nothing_moves_nothing(
    chasqui, dead, queue, queue_name, tmp_path, script, code, sentence
):
    drafts = tmp_path / "drafts"
    drafts.mkdir()
    said = await chasqui(
        "dlq", "edit", queue_name, "mail-0", "--yes",
        EDITOR=editor(tmp_path, script), VISUAL="", TMPDIR=str(drafts),
    )  # fmt: skip

    assert said.code in (code, 2)
    assert sentence in said.err
    assert len(await queue.peek_dlq()) == 2
    assert os.listdir(drafts) == []  # noqa: PTH208


async def test_an_edit_of_nobody_or_in_two_ways_is_refused(chasqui, dead, queue_name):
    nobody = await chasqui("dlq", "edit", queue_name, "nobody", "--data", "1", "--yes")
    both = await chasqui("dlq", "edit", queue_name, "mail-0", "--data", "1", "--set", "a=1")
    misfit = await chasqui("dlq", "edit", queue_name, "mail-0", "--set", "$.to[0]=1", "--yes")

    assert (nobody.code, both.code, misfit.code) == (1, 2, 2)
    assert "has the id 'nobody'; `chasqui dlq peek` shows ids" in nobody.err
    assert "give one" in both.err
    assert "a change that fits the data" in misfit.err


async def test_what_was_exported_is_imported_once(chasqui, dead, queue, queue_name, tmp_path):
    await chasqui("dlq", "export", queue_name, "--output", "dead.jsonl")
    await queue.purge_dlq(all=True)
    words = ("dlq", "import", queue_name, "dead.jsonl")

    dry = await chasqui(*words, "--dry-run")
    refused = await chasqui(*words, stdin=b"\n")
    first = await chasqui(*words, "--yes")
    second = await chasqui(*words, "--yes", "--json")

    assert dry.out == "would import 2 dead jobs\n"
    assert refused.code == 1
    assert first.out == "imported 2 dead jobs\n"
    assert second.json == {
        "lines": 2, "added": 0, "known": 2, "dry_run": False, "as_jobs": False,
    }  # fmt: skip
    new = await queue.peek_dlq()
    assert [one["payload"] for one in new] == [one["payload"] for one in dead]
    assert [one["error"] for one in new] == [one["error"] for one in dead]


@pytest.mark.parametrize("more", [(), ("--as-jobs",)])
async def test_a_dry_run_counts_what_is_known(chasqui, dead, queue, queue_name, more):
    await chasqui("dlq", "export", queue_name, "--limit", "1", "--output", "one.jsonl")
    await chasqui("dlq", "export", queue_name, "--output", "both.jsonl")
    await queue.purge_dlq(all=True)
    await chasqui("dlq", "import", queue_name, "one.jsonl", "--yes")
    await queue.purge_dlq(all=True)
    words = ("dlq", "import", queue_name, "both.jsonl", *more)

    dry = await chasqui(*words, "--dry-run")
    done = await chasqui(*words, "--yes")

    jobs = "job" if more else "dead job"
    assert (dry.out, done.out) == (f"would import 1 {jobs}\n", f"imported 1 {jobs}\n")
    for said in (dry, done):
        assert "1 of 2 are known: " in said.err
        assert said.err.endswith("refused for 24 h\n")


async def test_it_may_be_imported_as_jobs(chasqui, dead, queue, url, queue_name):
    await chasqui("dlq", "export", queue_name, "--output", "dead.jsonl")
    await queue.purge_dlq(all=True)

    said = await chasqui("dlq", "import", queue_name, "dead.jsonl", "--as-jobs", "--yes")

    assert said.out == "imported 2 jobs\n"
    assert len(await data_of(queue, url, queue_name)) == 2


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"\xff\xfe",
        b"{}",
        b'{"envelope_base64": "no"}',
        b"[" * 9_000,
    ],
)
async def test_a_file_with_a_bad_line_is_refused_before_anything_is_written(
    chasqui, dead, queue, queue_name, tmp_path, line
):
    await chasqui("dlq", "export", queue_name, "--output", "dead.jsonl")
    await queue.purge_dlq(all=True)
    with (tmp_path / "dead.jsonl").open("ab") as file:
        file.write(b"\n" + line + b"\n" + line + b"\n")

    said = await chasqui("dlq", "import", queue_name, "dead.jsonl", "--yes")

    assert said.code == 2
    assert "found 2 of 4 that are not (line 4: " in said.err
    assert said.err.rstrip().endswith("nothing was imported")
    assert (await queue.counts()).dead == 0


@pytest.mark.parametrize(
    ("options", "is_taken"),
    [
        (("--delay", "60d"), False),
        (("--delay", "60d", "--max-delay", "90d"), True),
        (("--at", "+60d"), False),
        (("--at", "+60d", "--max-delay", "61d"), True),
        (("--at", "+1d"), True),
    ],
)
async def test_a_delay_beyond_the_cap_is_refused_with_the_way_beyond(
    chasqui, queue, queue_name, options, is_taken
):
    days = {f"+{one}d": datetime.now(UTC) + timedelta(days=one) for one in (1, 60)}
    words = [f"{days[one]:%Y-%m-%dT%H:%M:%SZ}" if one in days else one for one in options]

    said = await chasqui("add", queue_name, "n", "1", *words)

    assert (said.code == 0) is is_taken, said.err
    assert (await queue.counts()).delayed == int(is_taken)
    assert is_taken or "a longer one is allowed by --max-delay" in said.err


async def test_a_delay_and_a_time_are_one_too_many(bare_chasqui):
    said = await bare_chasqui("add", "q", "n", "--delay", "1h", "--at", "2099-01-01")
    assert (said.code, "give one" in said.err) == (2, True)


async def test_a_part_that_the_data_does_not_have_is_refused(chasqui, dead, queue, queue_name):
    words = ("dlq", "edit", queue_name, "mail-0", "--yes")
    mistyped = await chasqui(*words, "--set", "$.too=ana@example.org")
    foreign = await chasqui(*words, "--set", "$.subject=hello")

    assert (mistyped.code, foreign.code) == (2, 2)
    assert "there is no field at $.too" in mistyped.err
    assert "did you mean $.to?" in mistyped.err
    assert "--data" in foreign.err
    assert len(await queue.peek_dlq()) == 2


async def test_no_editor_starts_where_there_is_no_terminal(chasqui, dead, queue_name):
    said = await chasqui("dlq", "edit", queue_name, "mail-0", "--yes", EDITOR="", VISUAL="")

    assert (said.code, said.out) == (1, "")
    assert said.err.startswith("error: an editor needs a terminal")
    assert "--set" in said.err
