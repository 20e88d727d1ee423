"""Results: kept in the same step as the completion, and told apart from failure and expiry."""

from __future__ import annotations

import asyncio

import pytest

from chasquimq import UnrecoverableError
from chasquimq.errors import JobFailed, ResultExpired, SettingsError
from support.waiting import eventually


async def echo(job):
    return job.data


@pytest.mark.parametrize("value", [0, "", [], {}, b"bytes", {"a": [1, None]}, 1.5, False], ids=repr)
async def test_what_a_handler_returns_is_what_a_waiter_gets(queue, running_worker, value):
    await running_worker(echo, store_results=True)

    job = await queue.add("echo", value)

    assert await job.wait_for_result(timeout=5) == value
    assert await queue.get_job_result(job.id) == value


async def test_none_is_an_answer_and_writes_no_result(queue, raw, running_worker):
    await running_worker(echo, store_results=True)

    job = await queue.add("echo", None)

    assert await job.wait_for_result(timeout=5) is None
    assert await raw("EXISTS", raw.keys.result(job.id)) == 0


async def test_many_waiters_are_served_together(queue, running_worker):
    await running_worker(echo, store_results=True)

    jobs = await queue.add_bulk([{"name": "echo", "data": at} for at in range(300)])
    values = await asyncio.gather(*(job.wait_for_result(timeout=10) for job in jobs))

    assert values == list(range(300))
    assert await queue.get_job_result_bulk([job.id for job in jobs]) == values


async def test_a_failed_job_tells_its_waiter_why(queue, running_worker):
    async def handler(job):
        raise UnrecoverableError("no such card")

    await running_worker(handler, store_results=True)
    job = await queue.add("charge", 1)

    with pytest.raises(JobFailed, match="no such card") as caught:
        await job.wait_for_result(timeout=5)
    assert caught.value.reason == "unrecoverable"
    # What programs written for ChasquiMQ (Rust) catch.
    assert isinstance(caught.value, TimeoutError)
    assert await queue.get_job_result(job.id) is None


async def test_an_expired_result_is_told_apart_from_none(queue, raw, running_worker):
    await running_worker(echo, store_results=True, result_ttl_ms=90_500)
    job = await queue.add("echo", 1)
    await job.wait_for_result(timeout=5)

    assert await raw("TTL", raw.keys.result(job.id)) in (90, 91)
    await raw("DEL", raw.keys.result(job.id))

    with pytest.raises(ResultExpired, match="result_ttl_ms"):
        await queue.wait_for_result(job.id, timeout=5)


async def test_a_result_that_cannot_be_stored_fails_the_job(queue, raw, running_worker):
    async def handler(job):
        return {1, 2} if job.data == "set" else b"x" * 2_000

    await running_worker(handler, store_results=True, max_attempts=1, max_result_bytes=1_000)
    jobs = {
        "result is a set; convert it first": await queue.add("odd", "set"),
        "must be at most 1000 bytes": await queue.add("odd", "big"),
    }

    for words, job in jobs.items():
        with pytest.raises(JobFailed, match=words):
            await job.wait_for_result(timeout=5)
        assert await raw("EXISTS", raw.keys.result(job.id)) == 0


def test_a_result_that_expired_is_caught_as_a_timeout():
    assert issubclass(ResultExpired, TimeoutError)


async def test_an_outcome_nobody_sees_in_time_is_a_timeout_that_names_the_remedy(queue):
    job = await queue.add("never", 1)

    with pytest.raises(TimeoutError, match="store_results"):
        await job.wait_for_result(timeout=0.2)
    with pytest.raises(SettingsError, match="timeout"):
        await job.wait_for_result(timeout=0)


async def test_without_store_results_nothing_is_kept(queue, raw, running_worker):
    await running_worker(echo)
    job = await queue.add("echo", 1)

    async def is_done():
        return (await queue.counts()).backlog == 0

    await eventually(is_done)
    assert await raw("EXISTS", raw.keys.result(job.id), raw.keys.outcome(job.id)) == 0
