"""A worker that is told to stop: bounded, gives back what it has not started, leaves no trace."""

from __future__ import annotations

import signal
import time

import pytest

from support.waiting import eventually


def terminate(process, within_s: float) -> float:
    """Send the signal and wait; the answer is how long it took."""
    asked_s = time.monotonic()
    process.send_signal(signal.SIGTERM)
    process.wait(within_s)
    return time.monotonic() - asked_s


async def test_what_has_not_started_runs_elsewhere_at_once_and_uncharged(queue, raw, workers):
    deadline_s = 3
    first = workers.start(
        "sleeping", 1, concurrency=1, read_count=64, shutdown_deadline_ms=deadline_s * 1000
    )
    await queue.add_bulk([{"name": "slow", "data": at} for at in range(64)])
    await eventually(lambda: workers.lines("start"), within_s=20)
    second = workers.start("sleeping", 0.01, concurrency=1)

    async def is_prefetched():
        return len(await raw.pending()) >= 60

    await eventually(is_prefetched)
    asked_s = time.monotonic()
    taken_s = terminate(first, deadline_s + 2)

    assert taken_s <= deadline_s + 1
    others = await eventually(
        lambda: [line for line in workers.lines("start") if line.pid == second.pid]
    )
    assert others[0].at_s - asked_s <= 1.5
    await eventually(lambda: len({line.job_id for line in workers.lines("end")}) == 64, within_s=20)
    assert {line.attempt for line in workers.lines("start")} == {0}
    terminate(second, 10)
    assert [name for name in await raw.consumers() if name != "returned"] == []


@pytest.mark.parametrize("handler", ["stubborn", "blocking", "spinning_in_a_thread"])
async def test_handlers_that_ignore_the_stop_do_not_hold_the_process(queue, workers, handler):
    process = workers.start(handler, 60, concurrency=2, shutdown_deadline_ms=500)
    await queue.add_bulk([{"name": "slow", "data": at} for at in range(2)])
    await eventually(lambda: len(workers.lines("start")) == 2, within_s=20)

    assert terminate(process, 10) <= 0.5 + 1


async def test_a_second_signal_gives_back_what_runs(queue, raw, workers):
    process = workers.start("sleeping", 60, concurrency=1, shutdown_deadline_ms=30_000)
    await queue.add("slow", 1)
    await eventually(lambda: workers.lines("start"), within_s=20)
    process.send_signal(signal.SIGTERM)
    with pytest.raises(Exception, match="timed out"):
        process.wait(0.5)

    assert terminate(process, 5) <= 1.5
    assert [row[1] for row in await raw.pending()] == [b"returned"]


async def test_a_server_that_is_gone_does_not_hold_the_stop(kind, queue_name, tmp_path):
    from chasquimq import Queue
    from support.worker_processes import WorkerProcesses

    with kind.session() as server:
        workers = WorkerProcesses(server.url, queue_name, tmp_path)
        process = workers.start("sleeping", 60, concurrency=1, shutdown_deadline_ms=1_000)
        async with Queue(queue_name, redis_url=server.url) as queue:
            await queue.add("slow", 1)
            await eventually(lambda: workers.lines("start"), within_s=20)
        server.kill()
        taken_s = terminate(process, 10)
        workers.close()
        assert taken_s <= 1 + 1
        server.restart()
