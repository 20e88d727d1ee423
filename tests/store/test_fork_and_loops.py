"""A connection belongs to one process and one event loop; anyone else is told so at once."""

from __future__ import annotations

import asyncio
import os
import traceback
from contextlib import suppress

import pytest

from chasquimq import Queue
from chasquimq.errors import StoreError


@pytest.fixture
def loop():
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture
def opened(loop, url, queue_name):
    """A queue that has added a job in `loop`."""
    queue = Queue(queue_name, redis_url=url)
    loop.run_until_complete(queue.add("n", 1))
    yield queue
    loop.run_until_complete(queue.close())


CALLS = {
    "add": lambda queue: queue.add("n", 2),
    "add_unique": lambda queue: queue.add_unique("n", 2, job_id="id"),
    "add_bulk": lambda queue: queue.add_bulk([{"name": "n", "data": 2}]),
    "counts": lambda queue: queue.counts(),
    "cancel_delayed": lambda queue: queue.cancel_delayed("id"),
}


async def failure_of(call, queue) -> str:
    try:
        await asyncio.wait_for(call(queue), 5)
    except StoreError as error:
        return str(error)
    except BaseException:  # noqa: BLE001  the parent reads it
        return traceback.format_exc()
    return "it worked"


def in_child(work) -> str:
    """What a forked process says."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            os.write(writer, work().encode()[:4_000])
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as pipe:
        return pipe.read()


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_queue_used_after_a_fork_says_so_at_once(opened, call):
    said = in_child(lambda: asyncio.run(failure_of(call, opened)))

    assert "open a new Queue or Worker after a fork" in said


def test_a_fork_takes_nothing_from_the_parents_connection(opened, loop):
    in_child(lambda: asyncio.run(failure_of(CALLS["add"], opened)))

    loop.run_until_complete(opened.add("n", 3))

    assert loop.run_until_complete(opened.counts()).ready == 2


def test_a_queue_opened_before_a_fork_and_used_after_it_works(url, queue_name):
    queue = Queue(queue_name, redis_url=url)

    async def add_and_close() -> str:
        await queue.add("n", 1)
        await queue.close()
        return "it worked"

    assert in_child(lambda: asyncio.run(add_and_close())) == "it worked"


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_queue_used_in_another_loop_says_so_at_once(opened, call):
    said = asyncio.run(failure_of(call, opened))

    assert "must be used in the event loop that opened it" in said
