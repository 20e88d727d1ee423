"""`chasqui events` prints what happens, a line each, and can be told what to leave out."""

from __future__ import annotations

import json
import re
import signal

import pytest

from support.command import ESCAPES

pytestmark = pytest.mark.takes_turns


async def test_a_line_has_time_id_event_and_sorted_fields(chasqui, queue_name, raw):
    entry_id = await raw(
        "XADD", raw.keys.events, "*", "e", "failed", "id", "j1", "ts", "1700000000123", "n", "mail",
        "reason", "x" * 300, "attempt", "2",
    )  # fmt: skip

    said = await chasqui("events", queue_name, "--from", "0", "--count", "1")

    assert said.out == (
        f"2023-11-14T22:13:20.123Z {entry_id.decode()} failed id=j1 name=mail attempt=2 "
        f"reason={'x' * 300}\n"
    )


async def test_what_is_missing_is_a_dash(chasqui, queue_name, raw):
    await raw("XADD", raw.keys.events, "1-1", "e", "drained", "id", "", "ts", "soon")

    said = await chasqui("events", queue_name, "--from", "0", "--count", "1")

    assert said.out == "- 1-1 drained id=- name=-\n"


async def test_control_bytes_and_passwords_in_events_are_not_shown(chasqui, queue_name, raw):
    await raw(
        "XADD", raw.keys.events, "*", "e", "x\x1b[2J", "reason", "redis://u:canary@h", "n", b"\xff"
    )

    said = [
        await chasqui("events", queue_name, "--from", "0", "--count", "1", *more)
        for more in ([], ["--json"])
    ]

    assert all("\x1b" not in one.out and "canary" not in one.out for one in said)


async def test_filters_leave_out_other_kinds_jobs_and_names(chasqui, queue_name, raw):
    for job, name, event in (("1", "a", "active"), ("1", "a", "dlq"), ("2", "b", "dlq")):
        await raw("XADD", raw.keys.events, "*", "e", event, "id", job, "n", name)
    everything = ("events", queue_name, "--from", "0", "--json", "--count", "1")

    by_event = await chasqui(*everything, "--event", "dlq")
    by_job = await chasqui(*everything, "--job", "2")
    by_name = await chasqui(*everything, "--name", "b", "--event", "dlq", "--event", "active")

    assert (by_event.json["job_id"], by_event.json["event"]) == ("1", "dlq")
    assert by_job.json["job_id"] == by_name.json["job_id"] == "2"


async def test_new_events_are_followed_until_ctrl_c(running, queue, queue_name, running_worker):
    async def handler(job) -> None: ...

    await running_worker(handler)
    following = running("events", queue_name, "--from", "0", "--json")

    job = await queue.add("mail", 1)
    await following.until_said('"event": "completed"')

    events = [json.loads(line) for line in following.out.splitlines()]
    assert [e["event"] for e in events if e["job_id"] == job.id] == ["active", "completed"]
    assert await following.ended(signal.SIGINT) == 130
    assert following.err == "interrupted\n"


async def test_a_terminal_sees_lines_as_they_come(terminal, queue_name, raw):
    await raw("XADD", raw.keys.events, "*", "e", "active", "id", "j1", "ts", "1700000000123")

    said = await terminal("events", queue_name, "--from", "0", until="name=-")

    assert said.code == 130
    assert re.search(
        r"^2023-11-14T22:13:20.123Z .* active id=j1", ESCAPES.sub("", said.out), re.MULTILINE
    )


async def test_a_queue_that_is_not_there_yet_is_waited_for(running, queue_name, raw):
    following = running("events", queue_name)
    await following.until_said("waiting for its first event")

    assert await following.ended(signal.SIGINT) == 130


async def test_a_place_to_begin_that_is_none_is_refused(bare_chasqui):
    said = await bare_chasqui("events", "q", "--from", "yesterday")

    assert said.code == 2
    assert said.err.startswith("error: last_event_id must be")
