"""Odd errors, odd moments and odd sizes cost their own job at most."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest

from chasquimq import Queue, RetryLater, Worker
from chasquimq.errors import LimitExceeded, ServerRefused
from chasquimq.settings import RetrySettings, UpkeepSettings
from support.waiting import eventually, patience


class Forgetful(RetryLater):
    """A subclass that forgets what its parent needs."""

    def __init__(self) -> None:
        Exception.__init__(self, "later")


async def is_empty(queue) -> bool:
    return (await queue.counts()).backlog == 0


async def test_an_error_that_cannot_be_judged_stops_nobody_else(queue, running_worker):
    seen = []

    async def handler(job):
        seen.append(job.data)
        if job.data == 0:
            raise Forgetful

    await running_worker(handler, max_attempts=1)
    await queue.add_bulk([{"name": "a", "data": at} for at in range(20)])

    await eventually(lambda: len(seen) == 20)
    await eventually(lambda: is_empty(queue))


async def test_jobs_run_again_after_the_stream_was_deleted_under_prefetched_ones(
    queue, raw, running_worker
):
    slow = asyncio.Event()
    started = []

    async def handler(job):
        started.append(job.data)
        if job.data == "slow":
            await slow.wait()

    await running_worker(handler, concurrency=2)
    await queue.add_bulk([{"name": "a", "data": "fast"} for _ in range(2_000)])
    await eventually(lambda: len(started) == 2_000)
    await queue.add_bulk([{"name": "a", "data": "slow"} for _ in range(8)])
    await eventually(lambda: started.count("slow") == 2)

    await raw("DEL", raw.keys.stream)
    slow.set()
    await queue.add("a", "new")

    await eventually(lambda: "new" in started, within_s=5)


async def test_a_payload_that_the_producer_accepts_is_accepted_by_the_worker(
    queue, raw, running_worker
):
    sizes = []

    async def handler(job):
        sizes.append(len(job.data))

    await running_worker(handler)
    payload = b"x" * (1024 * 1024 - 5)
    await queue.add("big", payload, job_id="i" * 256, attempts=3, timeout_ms=60_000)

    await eventually(lambda: sizes)
    assert sizes == [len(payload)]
    assert await raw.dlq() == []


async def test_cancelling_many_jobs_of_one_due_time_holds_up_nobody(queue, url):
    due = datetime.now(UTC) + timedelta(hours=1)
    jobs = []
    for _ in range(5):
        jobs += await queue.add_bulk(
            [{"name": "a", "data": 0, "delay_ms": due} for _ in range(1_000)]
        )

    started_s = time.monotonic()
    answers = await queue.cancel_delayed_bulk([job.id for job in jobs[:300]])

    assert answers == [True] * 300
    assert time.monotonic() - started_s < patience()
    assert (await queue.counts()).delayed == 4_700


async def test_the_window_of_a_delayed_job_is_the_one_that_was_asked_for(queue, running_worker):
    seen = []

    async def handler(job):
        seen.append(job.id)

    await running_worker(handler)
    await queue.add("a", 1, job_id="again", delay_ms=10, unique_for_ms=1)
    await eventually(lambda: len(seen) == 1)

    async def is_free():
        job = await queue.add("a", 1, job_id="again", delay_ms=10, unique_for_ms=1)
        return not job.is_duplicate

    await eventually(is_free, within_s=5)


async def test_none_replaces_what_an_earlier_job_of_the_id_returned(queue, raw, running_worker):
    async def handler(job):
        return job.data

    await running_worker(handler, store_results=True)
    await queue.add("a", 7, job_id="one", unique_for_ms=1)
    await eventually(lambda: raw("EXISTS", raw.keys.result("one")))

    async def is_added_again():
        # The first job may have ended within the millisecond that its id is kept for.
        again = await queue.add("a", None, job_id="one", unique_for_ms=1)
        return not again.is_duplicate

    await eventually(is_added_again)

    async def is_gone():
        return not await raw("EXISTS", raw.keys.result("one"))

    await eventually(is_gone)


async def test_two_callers_who_close_are_no_more_urgent_than_one(queue, running_worker):
    ended = []
    started = asyncio.Event()

    async def handler(job):
        started.set()
        try:
            await asyncio.sleep(0.3)
            ended.append("done")
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    running = await running_worker(handler)
    await queue.add("a", 1)
    await started.wait()
    await asyncio.gather(running.worker.close(), running.worker.close())

    assert ended == ["done"]


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: RetrySettings(jitter_ms=-1), id="jitter"),
        pytest.param(lambda: RetrySettings(multiplier=-1), id="multiplier"),
        pytest.param(lambda: UpkeepSettings(promote_max=0), id="promote_max"),
        pytest.param(lambda: UpkeepSettings(janitor_ms=0), id="janitor_ms"),
        pytest.param(lambda: Worker("q", print, result_ttl_ms=2**53), id="result_ttl_ms"),
    ],
)
def test_a_setting_that_would_spin_or_block_is_refused(make):
    with pytest.raises(LimitExceeded):
        make()


async def test_a_closed_queue_is_closed_for_every_part(url, queue_name):
    queue = Queue(queue_name, redis_url=url)
    await queue.add("a", 1)
    await queue.close()

    with pytest.raises(RuntimeError, match="closed"):
        await queue.peek_dlq()


@pytest.mark.parametrize("options", [{}, {"delay_ms": 60_000}], ids=["ready", "delayed"])
async def test_a_reused_id_does_not_answer_with_its_former_end(queue, running_worker, options):
    async def handler(job):
        return job.data

    worker = await running_worker(handler, store_results=True)
    first = await queue.add("a", "old", job_id="one", unique_for_ms=1)
    assert await first.wait_for_result(timeout=5) == "old"
    await worker.stop()

    async def is_added():
        job = await queue.add("a", "new", job_id="one", unique_for_ms=1, **options)
        return not job.is_duplicate

    await eventually(is_added, within_s=5)
    with pytest.raises(TimeoutError):
        await queue.wait_for_result("one", timeout=0.2)
    assert (await queue.get_job("one")).state in ("ready", "delayed")


async def test_a_failing_handler_is_logged_with_its_traceback_and_not_for_every_job(
    queue, running_worker, caplog
):
    async def handler(job):
        raise ZeroDivisionError("by zero")

    await running_worker(handler, max_attempts=1)
    await queue.add_bulk([{"name": "a", "data": at} for at in range(50)])
    await eventually(lambda: is_empty(queue))

    told = [record for record in caplog.records if "it was its last" in record.getMessage()]
    assert len(told) == 1
    assert "Traceback" in told[0].message
    assert 'raise ZeroDivisionError("by zero")' in told[0].message
    assert (told[0].chasqui_job_name, told[0].chasqui_fate) == ("a", "retries_exhausted")


async def test_a_refused_password_is_not_called_a_missing_server(url, queue_name):
    with pytest.raises(ServerRefused, match="must accept the credentials") as caught:
        await Queue(queue_name, redis_url=url.replace("unix://", "unix://:secret@")).counts()
    assert "secret" not in str(caught.value)
