"""A handler's own attempts, back-off, timeout and pool, beside those of its worker and its jobs."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections import Counter

import pytest

from chasquimq import Handler, Worker
from chasquimq.errors import SettingsError
from chasquimq.settings import RetrySettings
from support import fault_worker
from support.waiting import eventually

SOON = RetrySettings(initial_backoff_ms=10, max_backoff_ms=20, jitter_ms=0)


def failing(runs: Counter[str]):
    async def fail(job):
        runs[job.name] += 1
        raise ValueError("no")

    return fail


async def dead_count(queue) -> int:
    return (await queue.counts()).dead


async def pid_of_this(job):
    return os.getpid()


async def test_each_handler_has_its_own_attempts(queue, running_worker):
    runs: Counter[str] = Counter()
    fail = failing(runs)
    handlers = {
        "once": Handler(fail, attempts=1),
        "thrice": Handler(fail, attempts=3),
        "usual": fail,
    }
    await running_worker(handlers, retry=SOON, max_attempts=2)

    await queue.add_bulk([{"name": name, "data": None} for name in handlers])
    await queue.add("once", None, attempts=4)

    await eventually(lambda: dead_is(queue, 4), what="four dead jobs")
    assert runs == {"once": 1 + 4, "thrice": 3, "usual": 2}


async def dead_is(queue, count: int) -> bool:
    return await dead_count(queue) == count


async def test_a_lone_handler_has_its_own_attempts_for_every_name(queue, running_worker):
    runs: Counter[str] = Counter()
    await running_worker(Handler(failing(runs), attempts=2), retry=SOON)

    await queue.add("any", None)
    await queue.add("other", None)

    await eventually(lambda: dead_is(queue, 2), what="two dead jobs")
    assert runs == {"any": 2, "other": 2}


async def test_each_handler_has_its_own_backoff(queue, running_worker):
    starts: dict[str, list[float]] = {"quick": [], "slow": []}

    async def fail(job):
        starts[job.name].append(time.monotonic())
        raise ValueError("no")

    handlers = {
        "quick": Handler(fail, attempts=2, backoff=1),
        "slow": Handler(fail, attempts=2, backoff={"kind": "fixed", "delay_ms": 1_000}),
    }
    retry = RetrySettings(initial_backoff_ms=30_000, jitter_ms=0)
    await running_worker(handlers, retry=retry)

    await queue.add("quick", None)
    await queue.add("slow", None)

    await eventually(lambda: dead_is(queue, 2), what="two dead jobs")
    assert starts["quick"][1] - starts["quick"][0] < 0.9
    assert 1.0 <= starts["slow"][1] - starts["slow"][0] < 5


async def test_each_handler_has_its_own_timeout(queue, running_worker):
    async def lingers(job):
        await asyncio.sleep(0.5)
        return "done"

    handlers = {"short": Handler(lingers, timeout_ms=50, attempts=1), "usual": lingers}
    await running_worker(handlers, store_results=True, timeout_ms=20_000)

    await queue.add("short", None)
    patient = await queue.add("short", None, timeout_ms=10_000)
    usual = await queue.add("usual", None)

    assert await patient.wait_for_result(timeout=10) == "done"
    assert await usual.wait_for_result(timeout=10) == "done"
    [dead] = await queue.peek_dlq()
    assert dead["error"].startswith("JobTimeout")


async def test_each_handler_chooses_its_pool(queue, running_worker):
    handlers = {
        "here": pid_of_this,
        "there": Handler(fault_worker.facts, pool="process"),
        "thread": fault_worker.facts,
    }
    await running_worker(handlers, pool_size=1, store_results=True)

    jobs = [await queue.add(name, None) for name in handlers]
    here, there, thread = [await job.wait_for_result(timeout=10) for job in jobs]

    assert here == os.getpid() == thread[0]
    assert there[0] != os.getpid()


async def test_a_handler_leaves_the_process_pool_of_its_worker(queue, running_worker):
    handlers = {"there": fault_worker.facts, "here": Handler(fault_worker.facts, pool="thread")}
    await running_worker(handlers, pool="process", pool_size=1, store_results=True)

    jobs = [await queue.add(name, None) for name in handlers]
    there, here = [await job.wait_for_result(timeout=10) for job in jobs]

    assert here[0] == os.getpid() != there[0]


async def test_only_the_handler_with_a_process_is_stopped_at_its_timeout(queue, running_worker):
    handlers = {
        "never": Handler(fault_worker.sleep, pool="process", timeout_ms=200, attempts=1),
        "thread": fault_worker.facts,
    }
    await running_worker(handlers, pool_size=1, store_results=True)

    await queue.add("never", 60)
    usual = await queue.add("thread", None)

    assert (await usual.wait_for_result(timeout=10))[0] == os.getpid()
    await eventually(lambda: dead_is(queue, 1), what="the job that never ends is dead")


async def test_a_crash_counts_against_the_attempts_of_the_handler(queue, running_worker, url):
    runs: Counter[str] = Counter()
    await queue.add("once", None)
    with crashing_worker(url, queue.name) as crashing:
        assert crashing.wait(20) == 9

    await running_worker(Handler(failing(runs), attempts=1), claim_min_idle_ms=300)

    await eventually(lambda: dead_is(queue, 1), what="the job is dead")
    [dead] = await queue.peek_dlq()
    assert dead["reason"] == "crash_loop"
    assert not runs


def crashing_worker(url: str, queue: str) -> subprocess.Popen[bytes]:
    """A worker whose handler ends its process."""
    program = (
        "import os, sys; from chasquimq import Worker; import asyncio\n"
        "asyncio.run(Worker(sys.argv[2], lambda job: os._exit(9), redis_url=sys.argv[1],"
        " claim_min_idle_ms=300).run())"
    )
    return subprocess.Popen([sys.executable, "-c", program, url, queue])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"attempts": 0}, "attempts must be between 1"),
        ({"attempts": True}, "attempts must be a whole number"),
        ({"backoff": "soon"}, "backoff"),
        ({"timeout_ms": 0}, "timeout_ms must be at least 1"),
        ({"pool": "fork"}, 'pool must be "thread" or "process"'),
    ],
)
def test_an_option_that_makes_no_sense_is_refused_where_it_is_made(options, words):
    with pytest.raises(SettingsError, match=words):
        Handler(pid_of_this, **options)


def test_a_function_that_takes_no_job_is_refused_where_the_handler_is_made():
    with pytest.raises(SettingsError, match="a function that takes one argument"):
        Handler(lambda: None)


def test_a_timeout_of_a_plain_handler_in_a_thread_is_refused_by_name():
    handlers = {"a": Handler(fault_worker.facts, timeout_ms=100), "b": pid_of_this}

    with pytest.raises(SettingsError, match=r"handler\['a'\] timeout_ms must be unset"):
        Worker("q", handlers)


def test_a_process_for_a_handler_of_batches_is_refused_by_name():
    handlers = {"a": Handler(fault_worker.facts, pool="process")}

    with pytest.raises(SettingsError, match=r"handler\['a'\] pool must be"):
        Worker("q", handlers, batch=(10, 5))


def test_a_batch_that_outwaits_the_timeout_of_its_handler_is_refused():
    with pytest.raises(SettingsError, match="batch wait_ms must be below 20"):
        Worker("q", Handler(pid_of_this, timeout_ms=20), batch=(10, 50))


async def test_calling_a_handler_calls_its_function():
    assert await Handler(pid_of_this)(None) == os.getpid()
