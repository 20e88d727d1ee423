"""`chasqui delayed` lists what waits for its time, and takes it back."""

from __future__ import annotations

import pytest

from support.waiting import eventually

pytestmark = pytest.mark.takes_turns


async def test_the_soonest_come_first(chasqui, queue, queue_name, raw):
    await queue.add("late", 1, delay_ms=60_000, job_id="second")
    await queue.add("soon", 1, delay_ms=30_000, job_id="first")
    await raw("ZADD", raw.keys.delayed, "+inf", b"\xff")

    said = await chasqui("delayed", "list", queue_name)
    two = await chasqui("delayed", "list", queue_name, "--limit", "2", "--json")

    assert [row[:2] for row in said.rows] == [
        ["first", "soon"], ["second", "late"], ["(cannot be read)", "-"],
    ]  # fmt: skip
    assert said.rows[2][2] == "-"
    assert [job["job_id"] for job in two.json] == ["first", "second"]


async def test_more_than_a_page_is_listed(chasqui, queue, queue_name):
    await queue.add_bulk([{"name": "a", "data": 1, "delay_ms": 60_000 + at} for at in range(250)])

    listed = (await chasqui("delayed", "list", queue_name, "--limit", "240", "--json")).json

    assert len({job["job_id"] for job in listed}) == 240


async def test_cancelling_asks_and_a_cancelled_job_is_gone(chasqui, queue, queue_name):
    await queue.add("a", 1, delay_ms=60_000, job_id="mine")
    await queue.add("a", 1, delay_ms=60_000, job_id="other")

    refused = await chasqui("delayed", "cancel", queue_name, "mine", stdin=b"\n")
    done = await chasqui("delayed", "cancel", queue_name, "mine", "--yes")

    assert (refused.code, refused.out) == (1, "")
    assert (done.code, done.out) == (0, "mine  cancelled\n")
    assert [(await queue.get_job(job_id)).state for job_id in ("mine", "other")] == [
        "unknown", "delayed",
    ]  # fmt: skip


async def test_a_job_that_was_not_there_is_code_1(chasqui, queue, queue_name):
    await queue.add("a", 1, delay_ms=60_000, job_id="mine")

    said = await chasqui("delayed", "cancel", queue_name, "mine", "nobody", "--yes", "--json")

    assert said.code == 1
    assert said.json == {"cancelled": {"mine": True, "nobody": False}}


async def test_a_job_without_a_handler_says_what_it_waits_for(
    chasqui, queue, queue_name, running_worker
):
    async def handler(job) -> None: ...

    stranger = await running_worker({"send": handler})
    job = await queue.add("sned", 1)
    await eventually(lambda: stranger.worker.health().retried == 1)
    await stranger.stop()

    listed = await chasqui("delayed", "list", queue_name)
    (facts,) = (await chasqui("delayed", "list", queue_name, "--json")).json
    shown = await chasqui("job", "show", queue_name, job.id)
    known = (await chasqui("job", "show", queue_name, job.id, "--json")).json

    for said in (listed, shown):
        assert "a worker with a handler named 'sned'" in said.out
    for one in (facts, known):
        assert one["waits_for"] == "a worker with a handler named 'sned'"
        assert one["waits_until_ms"] - one["waits_since_ms"] == 600_000
    assert {"waits for", "waits since", "waits until"} <= {row[0] for row in shown.rows}


async def test_jobs_with_a_handler_wait_for_their_time_or_their_retry(
    chasqui, queue, queue_name, running_worker
):
    async def fails(job) -> None:
        raise ValueError("at first")

    await queue.add("later", 1, delay_ms=60_000)
    failing = await running_worker(fails)
    await queue.add("again", 1, backoff={"kind": "fixed", "delay_ms": 30_000})
    await eventually(lambda: failing.worker.health().failed == 1)

    said = await chasqui("delayed", "list", queue_name)

    assert {row[1]: row[3] for row in said.rows} == {"again": "its retry", "later": "its time"}
