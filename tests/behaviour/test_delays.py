"""Delayed jobs: never early by the server's clock, cancelled for sure, unique by their ids."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from chasquimq.errors import IdConflict, LimitExceeded, SettingsError
from chasquimq.wire.envelope import decode_envelope
from chasquimq.wire.stream_entry import split_member
from support.waiting import eventually, patience


async def server_ms(raw) -> float:
    seconds, micros = await raw("TIME")
    return int(seconds) * 1000 + int(micros) / 1000


async def is_empty(queue) -> bool:
    return (await queue.counts()).backlog == 0


async def test_a_delayed_job_waits_in_the_delayed_set_as_the_original_writes_it(queue, raw):
    before_ms = await server_ms(raw)
    job = await queue.add("later", {"x": 1}, delay_ms=60_000)
    after_ms = await server_ms(raw)

    (member, score) = await raw("ZRANGE", raw.keys.delayed, 0, -1, "WITHSCORES")
    name, envelope = split_member(member)
    assert name == "later"
    assert decode_envelope(envelope).id == job.id
    assert before_ms - 1 <= float(score) - 60_000 <= after_ms + 1


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"delay_ms": 250}, id="milliseconds"),
        pytest.param({"delay": timedelta(milliseconds=250)}, id="timedelta"),
        pytest.param({"delay_ms": 250, "job_id": "own"}, id="own id"),
    ],
)
async def test_a_delayed_job_never_starts_early_by_the_servers_clock(
    queue, raw, running_worker, options
):
    started = []

    async def handler(job):
        started.append(await server_ms(raw))

    await running_worker(handler)
    asked_ms = await server_ms(raw)
    await queue.add("later", 1, **options)

    await eventually(lambda: started)
    assert 250 <= started[0] - asked_ms < 250 + 1_000 * patience()


async def test_an_absolute_time_in_the_future_is_kept(queue, raw):
    instant = datetime.now(UTC) + timedelta(hours=1)

    await queue.add("later", 1, delay_ms=instant)

    (_, score) = await raw("ZRANGE", raw.keys.delayed, 0, -1, "WITHSCORES")
    assert float(score) == int(instant.timestamp() * 1000)


async def test_an_absolute_time_in_the_past_and_a_zero_delay_are_ready_at_once(queue, raw):
    await queue.add("now", 1, delay_ms=0)
    await queue.add("now", 1, delay_ms=datetime.now(UTC) - timedelta(days=1))

    counts = await queue.counts()
    assert (counts.ready, counts.delayed) == (2, 0)


async def test_a_bulk_may_mix_ready_and_delayed_jobs_and_answers_in_order(queue):
    jobs = await queue.add_bulk(
        [
            {"name": "a", "data": 1},
            {"name": "b", "data": 2, "delay_ms": 60_000},
            {"name": "c", "data": 3},
        ]
    )

    counts = await queue.counts()
    assert [job.name for job in jobs] == ["a", "b", "c"]
    assert (counts.ready, counts.delayed) == (2, 1)


async def test_any_delayed_job_can_be_cancelled_once(queue, raw):
    plain = await queue.add("later", 1, delay_ms=60_000)
    own = await queue.add("later", 1, delay_ms=60_000, job_id="order:7/é")

    first = await queue.cancel_delayed_bulk([plain.id, own.id, "unknown"])
    second = await queue.cancel_delayed_bulk([plain.id, own.id])

    assert (first, second) == ([True, True, False], [False, False])
    assert await raw("KEYS", f"{raw.keys.stream[:-6]}d*") == []


async def test_a_cancelled_job_never_runs_and_its_neighbour_does(queue, running_worker):
    seen = []

    async def handler(job):
        seen.append(job.data)

    jobs = await queue.add_bulk(
        [{"name": "later", "data": at, "delay_ms": 300} for at in range(20)]
    )
    assert await queue.cancel_delayed(jobs[3].id)
    await running_worker(handler)

    await eventually(lambda: len(seen) == 19)
    await eventually(lambda: is_empty(queue))
    assert sorted(seen) == [at for at in range(20) if at != 3]


async def test_cancelling_a_promoted_job_says_no(queue, running_worker):
    seen = []

    async def handler(job):
        seen.append(job.id)

    await running_worker(handler)
    job = await queue.add("soon", 1, delay_ms=20, job_id="gone")

    await eventually(lambda: seen)
    assert not await queue.cancel_delayed(job.id)


async def test_a_repeated_id_keeps_the_first_delayed_job(queue):
    first = await queue.add("later", 1, delay_ms=60_000, job_id="one")
    again = await queue.add("later", 1, delay_ms=1, job_id="one")
    at_once = await queue.add("later", 1, job_id="one")

    assert (first.is_duplicate, again.is_duplicate, at_once.is_duplicate) == (False, True, True)
    with pytest.raises(IdConflict, match="one"):
        await queue.add("later", 2, delay_ms=1, job_id="one", on_conflict="raise")
    counts = await queue.counts()
    assert (counts.ready, counts.delayed) == (0, 1)


async def test_many_due_jobs_are_promoted_without_a_pause_between_pages(queue, running_worker):
    seen = 0

    async def handler(job):
        nonlocal seen
        seen += 1

    for _ in range(3):
        await queue.add_bulk([{"name": "due", "data": 0, "delay_ms": 1} for _ in range(1_000)])
    await running_worker(handler)

    await eventually(lambda: seen == 3_000, within_s=5)


async def test_a_malformed_member_goes_to_the_dlq_and_the_others_run(queue, raw, running_worker):
    seen = []

    async def handler(job):
        seen.append(job.data)

    for bad in (b"", b"\x01", b"\xff\xff\xff\xff", b"\x09\x00\x00\x00short"):
        await raw("ZADD", raw.keys.delayed, 1, bad)
    await queue.add("good", 1, delay_ms=10)
    await running_worker(handler)

    await eventually(lambda: seen)
    dead = await eventually(raw.dlq)
    assert [fields[b"reason"] for fields in dead] == [b"malformed_delayed"] * 4
    assert {fields[b"d"] for fields in dead} >= {b"", b"\x01"}


async def test_extras_survive_a_delay_and_a_retry(queue, running_worker):
    seen = []

    async def handler(job):
        seen.append(job.delivery.extras)
        if job.attempt == 0:
            raise ValueError("once")

    await running_worker(handler)
    await queue.add("later", 1, delay_ms=10, timeout_ms=5_000, backoff=1)

    await eventually(lambda: len(seen) == 2)
    assert seen == [{"timeout_ms": 5_000}] * 2


async def test_a_delay_that_cannot_be_honoured_is_refused_before_any_write(queue, raw):
    with pytest.raises(LimitExceeded, match="max_delay_secs"):
        await queue.add("far", 1, delay=timedelta(days=31))
    for options in ({"delay_ms": -1}, {"delay_ms": float("nan")}, {"delay": timedelta(-1)}):
        with pytest.raises(SettingsError):
            await queue.add("bad", 1, **options)
    with pytest.raises(SettingsError, match="one at a time"):
        await queue.add("bad", 1, delay_ms=1, delay=timedelta(1))
    for options in ({"delay_ms": True}, {"delay_ms": "1"}, {"delay": 5}):
        with pytest.raises(TypeError):
            await queue.add("bad", 1, **options)

    assert await raw("KEYS", f"{raw.keys.stream[:-6]}*") == []


async def test_two_promoters_move_each_job_once(queue, running_worker):
    seen = []

    async def handler(job):
        seen.append(job.data)

    await queue.add_bulk([{"name": "due", "data": at, "delay_ms": 50} for at in range(500)])
    await asyncio.gather(*(running_worker(handler) for _ in range(3)))

    await eventually(lambda: len(seen) >= 500)
    await eventually(lambda: is_empty(queue))
    assert sorted(seen) == list(range(500))
