"""A server without memory: adds are refused by name, what runs goes on, what waits catches up."""

from __future__ import annotations

import asyncio
import time

import pytest

from chasquimq import BackoffSpec, Queue, RepeatPattern, UnrecoverableError, Worker
from chasquimq.errors import ServerOutOfMemory
from chasquimq.settings import ConnectionSettings
from chasquimq.store.producer.rows import Jobs, OwnIdTerms, Patience, RowWriter, own_id_write
from chasquimq.wire.new_job import encode_envelopes, job_digests
from support.waiting import eventually, patience

OUTAGE_S = 3.0
CATCH_UP_S = 2.0
JOBS = 20
# A server that only this test may starve.
pytestmark = pytest.mark.own_server


@pytest.fixture
async def memory(raw):
    """Takes all memory away, and gives it back."""

    async def leave(count: int) -> None:
        await raw("CONFIG", "SET", "maxmemory", count)

    yield leave
    await leave(0)


class Handler:
    """Does what the job's data say, on its first run only, and remembers when each run began."""

    def __init__(self):
        self.runs_s: dict[str, list[float]] = {}

    async def run(self, job):
        runs_s = self.runs_s.setdefault(job.id, [])
        runs_s.append(time.monotonic())
        act, wait_s = job.data
        if len(runs_s) > 1:
            return act
        await asyncio.sleep(wait_s)
        if act == "fail":
            raise ValueError("once")
        if act == "bury":
            raise UnrecoverableError("never")
        return act

    def has_run(self, jobs, count=1):
        return all(len(self.runs_s.get(job.id, ())) >= count for job in jobs)

    def last_s(self, jobs):
        return max(self.runs_s[job.id][-1] for job in jobs)


def some(act, *, wait_s=0.0, **options):
    return [{"name": act, "data": [act, wait_s], **options} for _ in range(JOBS)]


@pytest.mark.parametrize("keeps_results", [False, True], ids=["plain", "with results"])
async def test_work_goes_on_without_memory_and_what_fell_due_runs_when_it_returns(
    trial, raw, running_worker, memory, kind, keeps_results
):
    queue, handler = trial.queue, Handler()
    running = await running_worker(
        trial.watched(handler.run), store_results=keeps_results, concurrency=200
    )
    due, retrying = await work_to_come(trial, running.worker)
    at_work, failing = await work_under_way(trial, handler)

    await memory(1)
    taken_s = time.monotonic()
    await refused(queue)
    await eventually(lambda: has_drained(raw, running.worker), within_s=OUTAGE_S)
    drained_s = time.monotonic() - taken_s
    await asyncio.sleep(OUTAGE_S - drained_s)
    await refused(queue)
    assert not any(handler.has_run([job]) for job in due)
    await memory(0)
    returned_s = time.monotonic()

    again = [*retrying, *failing]
    await eventually(lambda: handler.has_run(due) and handler.has_run(again, 2))
    late_s = handler.last_s([*due, *again]) - returned_s
    print(
        f"{kind.label}: {len(at_work)} runs ended within {drained_s:.2f} s without memory, "
        f"{len(due) + len(again)} jobs that fell due ran within {late_s:.2f} s of its return"
    )
    assert late_s <= CATCH_UP_S * patience()
    await trial.drain()
    verdict = await trial.verdict()
    print(verdict.line)
    verdict.demand()
    assert len(await raw.dlq()) == JOBS
    assert running.worker.health().loops_down == {}
    assert await queue.add("again", ["again", 0])


async def work_to_come(trial, worker):
    """Delayed jobs and retries that fall due while the server has no memory."""
    wait_ms = int(OUTAGE_S * 500)
    due = await trial.add_bulk(some("delayed", delay_ms=wait_ms))
    retrying = await trial.add_bulk(some("fail", backoff=BackoffSpec.fixed(wait_ms)))
    await eventually(lambda: worker.health().retried == JOBS)
    return due, retrying


async def work_under_way(trial, handler):
    """Handlers that end while the server has no memory: well, badly, and for good."""
    completing = await trial.add_bulk(some("complete", wait_s=0.5))
    failing = await trial.add_bulk(some("fail", wait_s=0.5, backoff=BackoffSpec.fixed(100)))
    dying = await trial.add_bulk(some("bury", wait_s=0.5))
    at_work = [*completing, *failing, *dying]
    await eventually(lambda: handler.has_run(at_work))
    return at_work, failing


async def refused(queue):
    """No add comes through, whichever way it takes, and each says why."""
    for options in ({}, {"delay_ms": 1_000}, {"job_id": "mine"}, {"job_id": "x", "delay_ms": 9}):
        with pytest.raises(ServerOutOfMemory):
            await queue.add("more", ["more", 0], **options)
    with pytest.raises(ServerOutOfMemory) as caught:
        await queue.add_bulk(some("more"))
    assert len(caught.value.job_ids) == JOBS


async def has_drained(raw, worker):
    """All that ran when memory went has completed, waits for its retry, or is dead."""
    health = worker.health()
    delayed = await raw("ZCARD", raw.keys.delayed)
    return (health.completed, health.buried, delayed) == (JOBS, JOBS, 3 * JOBS)


FIRST_WRITES = {
    "add": lambda queue: queue.add("n", 1),
    "add_bulk": lambda queue: queue.add_bulk([{"name": "n", "data": at} for at in range(300)]),
    "add with an id": lambda queue: queue.add("n", 1, job_id="mine"),
    "add for later": lambda queue: queue.add("n", 1, delay_ms=60_000),
    "add for later with an id": lambda queue: queue.add("n", 1, delay_ms=60_000, job_id="mine"),
    "plan": lambda queue: queue.upsert_repeatable_job("n", 1, repeat=RepeatPattern.every(60_000)),
}


@pytest.mark.parametrize("resend", [True, False], ids=["resent", "sent once"])
@pytest.mark.parametrize("first", FIRST_WRITES.values(), ids=FIRST_WRITES)
async def test_the_first_write_of_a_queue_says_that_memory_is_missing(
    url, queue_name, raw, memory, first, resend
):
    await memory(1)
    async with Queue(queue_name, redis_url=url, resend=resend) as queue:
        with pytest.raises(ServerOutOfMemory, match="raise maxmemory"):
            await first(queue)
        assert await raw("KEYS", "*") == []
        await memory(0)
        assert await first(queue)


async def test_a_worker_of_a_queue_that_is_not_there_yet_says_that_memory_is_missing(
    url, queue_name, memory
):
    await memory(1)

    with pytest.raises(ServerOutOfMemory, match="raise maxmemory"):
        await asyncio.wait_for(Worker(queue_name, print, redis_url=url).run(), 10)


async def test_rows_for_a_queue_that_is_not_there_yet_say_that_memory_is_missing(
    url, queue_name, memory
):
    def write() -> None:
        patience = Patience(resend_s=0.1, full_s=0.1)
        writer = RowWriter(
            queue_name, ConnectionSettings(url=url), lambda *_: None, patience=patience
        )
        jobs = Jobs(["a"], ["n"], encode_envelopes(["a"], [b"\xc0"], 5))
        terms = OwnIdTerms(
            stream_len_max=0, unique_ms=60_000, has_leftovers=writer.has_leftovers(["a"]),
            has_many_set=writer.has_many_set(),
        )  # fmt: skip
        digests = job_digests(jobs.names, [b"\xc0"])
        try:
            writer.put(own_id_write(jobs, digests, writer.keys, terms))
            writer.drain()
        finally:
            writer.close()

    await memory(1)

    with pytest.raises(ServerOutOfMemory, match="raise maxmemory"):
        await asyncio.to_thread(write)
