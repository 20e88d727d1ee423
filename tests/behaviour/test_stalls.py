"""A worker that holds jobs and starts none of them says so, and one that may not start does not."""

from __future__ import annotations

import asyncio
import re
import time

import pytest

from chasquimq import InMemorySink
from chasquimq.errors import SettingsError
from chasquimq.telemetry.http import MetricsServer
from chasquimq.telemetry.sink import WorkerHealth
from chasquimq.worker import Worker
from support.waiting import eventually

STALL_MS = 300


async def probe(port: int) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /readyz HTTP/1.1\r\n\r\n")
    status = int((await reader.readline()).split()[1])
    writer.close()
    await writer.wait_closed()
    return status


async def noop(job):
    return


def runners_of(running):
    return running.worker._session.pipeline.runners


async def test_a_worker_that_starts_nothing_of_what_it_holds_is_not_well(queue, running_worker):
    sink = InMemorySink()
    running = await running_worker(noop, stall_after_ms=STALL_MS, metrics=sink)
    health, runners = running.worker.health, runners_of(running)
    # As a runner leaves it that ended without a word.
    runners._is_draining = True
    await queue.add_bulk([{"name": "n", "data": at} for at in range(3)])

    async with MetricsServer(
        lambda: b"", is_healthy=lambda: True, is_ready=lambda: health().is_ok
    ) as pages:
        await eventually(lambda: health().is_stalled, what="the stall")
        assert await probe(pages.port) == 503
        assert not health().is_ok
        (sentence,) = health().problems
        assert sentence.startswith("3 jobs wait and room is free, but nothing has started for")
        assert health().oldest_waiting_age_ms >= STALL_MS - 50  # a beat of the event loop
        await eventually(lambda: sink.records(WorkerHealth)[-1].is_stalled)
        assert sink.records(WorkerHealth)[-1].oldest_waiting_age_ms >= STALL_MS

        runners._is_draining = False
        await eventually(lambda: health().completed == 3, what="the end of the stall")
        await eventually(lambda: health().is_ok)
        assert await probe(pages.port) == 200
    assert (health().problems, health().oldest_waiting_age_ms) == ([], 0)


async def test_jobs_that_wait_for_their_turn_are_no_stall(queue, running_worker):
    gate = asyncio.Event()

    async def waits(job):
        await gate.wait()

    running = await running_worker(waits, concurrency=1, stall_after_ms=STALL_MS)
    await queue.add_bulk([{"name": "n", "data": at} for at in range(3)])
    health = running.worker.health
    await eventually(lambda: health().oldest_waiting_age_ms > 3 * STALL_MS)

    assert (health().is_stalled, health().is_ok, health().running) == (False, True, 1)
    gate.set()
    await eventually(lambda: health().completed == 3)


async def test_jobs_that_are_held_back_for_a_reason_are_no_stall(queue, running_worker):
    running = await running_worker(noop, stall_after_ms=STALL_MS)
    runners_of(running).hold_back("leases")
    await queue.add("n", None)
    health = running.worker.health
    await eventually(lambda: health().oldest_waiting_age_ms > 3 * STALL_MS)

    assert not health().is_stalled
    runners_of(running).allow("leases")
    await eventually(lambda: health().completed == 1)
    assert not health().is_stalled


async def test_a_worker_that_idles_or_is_busy_for_long_is_no_stall(queue, running_worker):
    running = await running_worker(noop, stall_after_ms=STALL_MS)
    health, stalls = running.worker.health, []
    for round_number in range(4):
        await asyncio.sleep(1.5 * STALL_MS / 1000)
        await queue.add_bulk([{"name": "n", "data": at} for at in range(50)])
        while health().completed < 50 * (round_number + 1):
            stalls.append(health().is_stalled)
            await asyncio.sleep(0)

    assert not any(stalls)


async def test_a_runner_that_somebody_cancels_is_replaced(queue, running_worker):
    """Whoever cancels all tasks of the process meets ours between two jobs."""
    done, cancelled = [], []

    async def handler(job):
        done.append(job.data)
        spins_until = time.monotonic() + 0.006  # longer than a slice: the runner pauses after it
        while time.monotonic() < spins_until:
            pass

    async def cancels_runners():
        while len(cancelled) < 5:
            runners = [one for one in asyncio.all_tasks() if one.get_name() == "chasqui-runner"]
            cancelled.extend(one.cancel() for one in runners)
            await asyncio.sleep(0)

    running = await running_worker(handler, concurrency=5)
    await queue.add_bulk([{"name": "n", "data": at} for at in range(50)])
    await asyncio.wait_for(cancels_runners(), 10)

    await eventually(lambda: running.worker.health().completed == 50)
    assert sorted(done) == list(range(50))


async def test_a_job_that_cancels_every_loop_of_its_worker_stalls_nothing(queue, running_worker):
    runs, cancelled = [], []

    async def handler(job):
        runs.append(job.data)
        if job.data == "cancels":
            named = {task: task.get_name() for task in asyncio.all_tasks()}
            loops = [one for one in named if named[one].startswith("chasqui-")]
            cancelled.extend(one.cancel() for one in loops if named[one] != "chasqui-runner")

    running = await running_worker(handler, concurrency=5)
    await queue.add_bulk([{"name": "n", "data": at} for at in range(10)])
    await queue.add("n", "cancels")
    await eventually(lambda: len(cancelled) > 5)
    await queue.add_bulk([{"name": "n", "data": at} for at in range(10, 20)])

    await eventually(lambda: len(runs) == 21)
    await eventually(lambda: running.worker.health().unconfirmed == 0)
    counts = await queue.counts()
    assert (counts.ready, counts.running, len(runs)) == (0, 0, 21)


async def test_a_run_that_ends_with_all_tasks_cancelled_acks_what_was_done(
    url, queue, queue_name, raw
):
    """`asyncio.run` cancels every task when its main one returns: loops as well as the run."""
    done = asyncio.Event()

    async def handler(job):
        done.set()
        for task in asyncio.all_tasks() - {asyncio.current_task(), of_the_test}:
            task.cancel()

    of_the_test = asyncio.current_task()
    await queue.add("n", 1)
    running = asyncio.create_task(Worker(queue_name, handler, redis_url=url).run())
    await asyncio.wait([running], timeout=10)

    assert done.is_set()
    assert running.cancelled()
    assert await raw("XLEN", raw.keys.stream) == 0


async def test_a_task_factory_that_refuses_now_and_then_stalls_nothing(queue, running_worker):
    refusals = []

    async def handler(job):
        await asyncio.sleep(0)

    running = await running_worker(handler)
    loop = asyncio.get_running_loop()

    def refusing(loop, coroutine, **more):
        if getattr(coroutine, "__name__", "") == "_drain" and len(refusals) < 3:
            refusals.append(coroutine)
            raise RuntimeError("no more tasks")
        return asyncio.Task(coroutine, loop=loop, **more)

    loop.set_task_factory(refusing)
    try:
        await queue.add_bulk([{"name": "n", "data": at} for at in range(20)])
        await eventually(lambda: running.worker.health().completed == 20)
    finally:
        loop.set_task_factory(None)
    assert len(refusals) == 3


def test_a_stall_takes_at_least_a_millisecond():
    with pytest.raises(SettingsError, match="stall_after_ms must be at least 1"):
        Worker("q", noop, stall_after_ms=0)


def blocked_lines(caplog) -> list[str]:
    lines = [record.getMessage() for record in caplog.records]
    return [line for line in lines if line.startswith("the event loop of worker ")]


async def blocks_after(job):
    """Waits first, so that it is one of several that run when it blocks."""
    await asyncio.sleep(job.data["wait_s"])
    time.sleep(job.data["block_s"])  # noqa: ASYNC251 - it must block


@pytest.mark.parametrize("wait_s", [0, 0.1])
async def test_a_handler_that_blocks_the_event_loop_is_named_once(
    queue, running_worker, caplog, wait_s
):
    running = await running_worker(blocks_after, concurrency=1)

    for job_id in ("first", "second"):
        data = {"wait_s": wait_s, "block_s": 1.1}
        await queue.add("report", data, job_id=job_id)
    await eventually(lambda: running.worker.health().completed == 2)

    (line,) = blocked_lines(caplog)
    assert re.match(
        rf"the event loop of worker \S+ of queue {queue.name} was blocked for 1\.[1-9] s while job first \(report\) ran; .*plain def",
        line,
    )


async def test_of_many_jobs_the_one_that_ran_through_the_block_is_named(
    queue, running_worker, caplog
):
    let_go = asyncio.Event()

    async def handler(job):
        if job.name == "blocks":
            time.sleep(1.1)  # noqa: ASYNC251 - it must block
        else:
            await let_go.wait()

    await running_worker(handler, concurrency=10)
    await queue.add_bulk([{"name": "waits", "data": at} for at in range(4)])
    await queue.add("blocks", 1, job_id="culprit")
    await eventually(lambda: blocked_lines(caplog))
    let_go.set()

    (line,) = blocked_lines(caplog)
    assert "while job culprit (blocks) ran; " in line


async def test_a_handler_in_a_thread_and_a_short_block_are_no_news(queue, running_worker, caplog):
    def sleeps(job):
        time.sleep(1.3)

    running = await running_worker(sleeps)
    await queue.add("n", 1)
    await eventually(lambda: running.worker.health().completed == 1)
    time.sleep(0.5)  # noqa: ASYNC251 - it must block
    await asyncio.sleep(0.1)

    assert not blocked_lines(caplog)


async def test_a_block_that_is_no_job_of_the_worker_says_so(queue, running_worker, caplog):
    await running_worker(noop)
    await asyncio.sleep(0.1)

    time.sleep(1.1)  # noqa: ASYNC251 - it must block

    (line,) = await eventually(lambda: blocked_lines(caplog))
    assert "while no job ran; look at hooks" in line


async def test_a_quick_job_just_before_the_block_is_not_named(queue, running_worker, caplog):
    began = asyncio.Event()

    async def handler(job):
        if job.name == "quick":
            began.set()
            return
        await began.wait()
        time.sleep(1.1)  # noqa: ASYNC251 - it must block

    await running_worker(handler, concurrency=2)
    await queue.add("blocks", 1, job_id="culprit")
    await queue.add("quick", 1, job_id="innocent")

    (line,) = await eventually(lambda: blocked_lines(caplog))
    assert "while job culprit (blocks) ran; " in line
