"""What one job leaves behind never reaches another, though they share a runner."""

from __future__ import annotations

import asyncio
import contextvars
import sys

import pytest

from support.waiting import eventually

colour = contextvars.ContextVar("colour", default="none")
FOLLOWERS = 3000
pytestmark = pytest.mark.takes_turns


async def test_a_context_variable_of_one_job_is_unknown_to_the_next(queue, running_worker):
    seen = []

    async def handler(job):
        seen.append(colour.get())
        colour.set(f"job {job.data}")
        if job.data % 3 == 0:
            await asyncio.sleep(0)
            assert colour.get() == f"job {job.data}"

    running = await running_worker(handler)
    await queue.add_bulk(followers())

    await eventually(lambda: running.worker.health().completed == FOLLOWERS)
    assert set(seen) == {"none"}


async def test_a_job_inherits_the_context_of_its_worker(queue, running_worker):
    seen = []

    async def handler(job):
        seen.append(colour.get())

    token = colour.set("worker's")
    await running_worker(handler)
    colour.reset(token)
    await queue.add("n", None)

    await eventually(lambda: seen == ["worker's"])


def cancels_in_a_moment():
    task = asyncio.current_task()
    for delay_s in (0, 0.001, 0.005, 0.02, 0.1):
        asyncio.get_running_loop().call_later(delay_s, task.cancel)


def cancels_itself():
    asyncio.current_task().cancel()


def cancels_itself_and_changes_its_mind():
    asyncio.current_task().cancel()
    asyncio.current_task().uncancel()


def cancels_soon():
    asyncio.get_running_loop().call_soon(asyncio.current_task().cancel)


@pytest.mark.parametrize("is_waiting", [False, True], ids=["never_suspended", "suspended"])
@pytest.mark.parametrize(
    "act",
    [cancels_in_a_moment, cancels_itself, cancels_itself_and_changes_its_mind, cancels_soon],
    ids=lambda act: act.__name__,
)
async def test_a_cancel_that_a_job_leaves_behind_reaches_no_other_job(
    queue, raw, running_worker, act, is_waiting
):
    """The culprit may fail; every follower completes at its first attempt."""
    done, attempts = set(), set()

    async def handler(job):
        if job.name == "culprit":
            await culprit(act, is_waiting)
            return
        attempts.add(job.attempt)
        if job.data % 5 == 0:
            await asyncio.sleep(0.001)
        elif job.data % 7 == 0:
            await asyncio.sleep(0)
        done.add(job.data)

    running = await running_worker(handler, concurrency=5, max_attempts=1)
    jobs = followers()
    for at in range(0, FOLLOWERS, 150):
        jobs.insert(at, {"name": "culprit", "data": at})
    await queue.add_bulk(jobs)

    await eventually(lambda: len(done) == FOLLOWERS, within_s=20)
    await eventually(lambda: is_empty(queue))
    assert attempts == {0}
    assert {entry[b"n"] for entry in await raw.dlq()} <= {b"culprit"}
    assert running.worker.health().is_ok


async def culprit(act, is_waiting):
    if is_waiting:
        await asyncio.sleep(0)
    act()
    if is_waiting and act is cancels_in_a_moment:
        await asyncio.sleep(0)


async def test_a_timeout_block_of_one_job_does_not_end_another(queue, raw, running_worker):
    done = []

    async def handler(job):
        async with asyncio.timeout(0.005):
            if job.data % 50 == 0:
                await asyncio.sleep(0.001)
        done.append(job.data)

    await running_worker(handler, concurrency=5)
    await queue.add_bulk(followers())

    await eventually(lambda: len(done) >= FOLLOWERS, within_s=20)
    assert sorted(done) == list(range(FOLLOWERS))


async def test_tasks_a_job_leaves_running_end_by_themselves(queue, running_worker):
    ended = []

    async def lingers(number):
        await asyncio.sleep(0.01)
        ended.append(number)

    tasks = set()

    async def handler(job):
        tasks.add(asyncio.create_task(lingers(job.data)))

    await running_worker(handler)
    await queue.add_bulk(followers(200))

    await eventually(lambda: len(ended) == 200)


async def test_the_recursion_of_one_job_is_its_own_failure(queue, raw, running_worker):
    done = []

    def dives():
        return dives()

    async def handler(job):
        if job.name == "culprit":
            dives()
        done.append(job.id)

    depth = sys.getrecursionlimit()
    await running_worker(handler, max_attempts=1)
    await queue.add_bulk([{"name": "culprit", "data": 0}, *followers(50)])

    await eventually(lambda: len(done) == 50)
    (entry,) = await eventually(raw.dlq)
    assert entry[b"error"].startswith(b"RecursionError")
    assert sys.getrecursionlimit() == depth


def followers(count=FOLLOWERS):
    return [{"name": "n", "data": i} for i in range(count)]


async def is_empty(queue):
    return (await queue.counts()).backlog == 0
