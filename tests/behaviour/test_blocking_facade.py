"""chasquimq.blocking: the same Queue, for code that has no event loop."""

from __future__ import annotations

import asyncio
import inspect
import signal
import subprocess
import sys
import textwrap
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import chasquimq
from chasquimq.blocking import Queue
from chasquimq.errors import NotSupportedError, ServerUnreachable, SettingsError, StoreError
from support.faultproxy import FaultProxy

SRC = Path(chasquimq.__file__).parents[1]
METHODS = [
    name
    for name, member in inspect.getmembers(chasquimq.Queue, inspect.iscoroutinefunction)
    if not name.startswith("_")
]
pytestmark = pytest.mark.takes_turns


@pytest.fixture
def blocking(url, queue_name):
    with Queue(queue_name, redis_url=url) as queue:
        yield queue


@pytest.fixture
def start(url):
    """Run a small program that knows `Queue`, `url` and a fresh queue `name`."""
    started = []

    def run(program: str) -> subprocess.Popen:
        head = f"""
            import gc, os, sys, threading, time
            from chasquimq.blocking import Queue
            url, name = {url!r}, {"q-" + uuid.uuid4().hex!r}
        """
        text = textwrap.dedent(head) + textwrap.dedent(program)
        started.append(
            subprocess.Popen(
                # Python 3.12 and newer warn of every fork beside threads; these forks are the point.
                [sys.executable, "-u", "-W", "ignore:This process:DeprecationWarning", "-c", text],
                env={"PYTHONPATH": str(SRC)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate()


def finished(process: subprocess.Popen) -> str:
    """What a program that ended well has printed."""
    out, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (0, "")
    return out.strip()


# the same queue


@pytest.mark.parametrize("name", METHODS)
def test_every_method_takes_and_gives_the_same_but_waits(name):
    twin = getattr(Queue, name)

    assert inspect.signature(twin) == inspect.signature(getattr(chasquimq.Queue, name))
    assert not inspect.iscoroutinefunction(twin)
    assert twin.__doc__ == getattr(chasquimq.Queue, name).__doc__


def test_a_queue_is_made_with_the_same_settings():
    assert inspect.signature(Queue) == inspect.signature(chasquimq.Queue)


def test_jobs_are_added_and_counted(blocking, queue_name):
    job = blocking.add("greet", {"to": "ada"})
    bulk = blocking.add_bulk([{"name": "n", "data": i} for i in range(3)])

    assert (blocking.name, job.name, len(bulk)) == (queue_name, "greet", 3)
    assert blocking.counts().ready == 4


async def test_a_result_is_waited_for(url, queue_name, running_worker):
    async def double(job):
        return job.data * 2

    await running_worker(double, store_results=True)

    def add_and_wait() -> int:
        with Queue(queue_name, redis_url=url) as queue:
            return queue.wait_for_result(queue.add("n", 21).id, timeout=10)

    assert await asyncio.to_thread(add_and_wait) == 42


def test_errors_are_the_same(blocking):
    with pytest.raises(SettingsError, match="job name must be a string"):
        blocking.add(5, None)


def test_no_server_is_told_the_same_way(queue_name):
    queue = Queue(queue_name, redis_url="redis://127.0.0.1:1")

    with pytest.raises(ServerUnreachable, match=r"a server must answer at redis://127\.0\.0\.1:1"):
        queue.add("n", 1)


def test_a_closed_queue_refuses_every_call(blocking):
    blocking.add("n", 1)
    blocking.close()
    blocking.close()

    assert blocking.is_closed
    with pytest.raises(StoreError, match="is closed; open a new Queue"):
        blocking.add("n", 2)


# loops and threads


async def test_inside_a_running_loop_it_says_what_to_use_there(queue_name, url):
    queue = Queue(queue_name, redis_url=url)

    with pytest.raises(NotSupportedError, match=r"use chasquimq\.Queue here"):
        queue.add("n", 1)


async def test_threads_share_one_connection(url, queue_name):
    async with FaultProxy(url) as proxy:
        queue = Queue(queue_name, redis_url=proxy.url)

        def add_from_threads() -> int:
            with ThreadPoolExecutor(8) as threads:
                list(threads.map(lambda i: queue.add("n", i), range(200)))
            ready = queue.counts().ready
            queue.close()
            return ready

        assert await asyncio.to_thread(add_from_threads) == 200
        assert proxy.accept_count == 1


def test_all_queues_share_one_thread(url):
    with Queue("a", redis_url=url) as first, Queue("b", redis_url=url) as second:
        first.counts()
        second.counts()

    names = [thread.name for thread in threading.enumerate()]
    assert names.count("chasqui-blocking") == 1


# processes


def test_after_a_fork_each_process_has_a_connection_of_its_own(start):
    process = start("""
        queue = Queue(name, redis_url=url)
        queue.add("n", "before")
        child = os.fork()
        if child == 0:
            queue.add("n", "in the child")
            queue.close()
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        started_s = time.monotonic()
        queue.add("n", "after")
        assert time.monotonic() - started_s < 4
        print(queue.counts().ready)
        queue.close()
    """)

    assert finished(process) == "3"


def test_a_child_that_lets_go_of_the_queue_does_its_parent_no_harm(start):
    process = start("""
        queue = Queue(name, redis_url=url)
        queue.add("n", "before")
        if os.fork() == 0:
            del queue
            gc.collect()
            sys.exit(0)
        os.wait()
        started_s = time.monotonic()
        queue.add("n", "after")
        assert time.monotonic() - started_s < 4
        print(queue.counts().ready)
        queue.close()
    """)

    assert finished(process) == "2"


def test_a_queue_closed_before_a_fork_is_closed_after_it(start):
    process = start("""
        queue = Queue(name, redis_url=url)
        queue.add("n", 1)
        queue.close()
        if os.fork() == 0:
            try:
                queue.add("n", 2)
            except RuntimeError as error:
                print("closed" if "is closed" in str(error) else error)
            sys.exit(0)
        os.wait()
    """)

    assert finished(process) == "closed"


def test_ctrl_c_ends_a_wait_and_the_queue_goes_on(start):
    process = start("""
        queue = Queue(name, redis_url=url)
        queue.add("n", 1)
        started_s = time.monotonic()
        try:
            threading.Timer(0.2, print, ["waiting"]).start()
            queue.wait_for_result("nobody", timeout=60)
        except KeyboardInterrupt:
            print("interrupted", time.monotonic() - started_s < 10)
        print(queue.add("n", 2).name, queue.counts().ready)
        queue.close()
    """)
    assert process.stdout.readline() == "waiting\n"

    process.send_signal(signal.SIGINT)

    assert finished(process) == "interrupted True\nn 2"


def test_a_program_that_closes_nothing_still_ends(start):
    process = start("""
        queue = Queue(name, redis_url=url)
        print(queue.add("n", 1).name)
    """)

    assert finished(process) == "n"
