"""A queue serves every event loop and thread of its process, and refuses a forked one at once."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import traceback
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

import pytest
import uvloop

from chasquimq import Producer, Queue, QueueEvents
from chasquimq.errors import StoreError
from chasquimq.queue.inspector import Inspector
from chasquimq.settings import ConnectionSettings
from chasquimq.store.net.blocking import BlockingConnection
from chasquimq.wire.keys import QueueKeys
from store.certificates import Authority
from support.faultproxy import FaultProxy
from support.waiting import eventually


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


def test_each_forked_process_adds_under_a_producer_id_of_its_own(url, queue_name):
    """A server remembers only so many adds of one producer, and a resend needs them."""
    producer = Producer(url, queue_name)

    async def add_and_close() -> str:
        await producer.add(b"1")
        used = producer._queue._connections.store().producer_id
        await producer.shutdown()
        return f"{producer.producer_id()} {used}"

    said = [in_child(lambda: asyncio.run(add_and_close())).split() for _ in range(2)]

    (first, first_used), (second, second_used) = said
    assert (first, second) == (first_used, second_used)
    assert len({first, second, producer.producer_id()}) == 3


@pytest.fixture
def look(url, queue_name):
    """How many connections of a kind the server has, and how many jobs this queue."""
    connection = BlockingConnection(ConnectionSettings(url=url))
    before = connection.call("CLIENT", "LIST").decode().count("name=chasqui-")

    class Look:
        def connections(self) -> int:
            return connection.call("CLIENT", "LIST").decode().count("name=chasqui-") - before

        def jobs(self) -> int:
            return connection.call("XLEN", QueueKeys(queue_name).stream)

    yield Look()
    connection.close()


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_queue_works_in_another_loop_while_the_first_is_open(opened, call):
    assert asyncio.run(failure_of(call, opened)) == "it worked"


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_one_queue_works_in_one_run_after_the_other(url, queue_name, look, call, run):
    queue = Queue(queue_name, redis_url=url)

    said = [run(failure_of(call, queue)) for _ in range(3)]
    gc.collect()

    assert said == ["it worked"] * 3
    assert look.connections() == 0


async def until_closed(look, count: int = 0) -> None:
    """The server sees the end of a socket a moment later."""
    await eventually(lambda: look.connections() == count)


def test_the_socket_of_a_loop_that_just_ended_is_closed_by_the_next(url, queue_name, look):
    queue = Queue(queue_name, redis_url=url)
    for _ in range(3):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(queue.add("n", 1))
        loop.close()

    async def add_and_look() -> None:
        await queue.add("n", 1)
        await until_closed(look, 1)
        await queue.close()
        await until_closed(look)

    asyncio.run(add_and_look())
    gc.collect()

    assert look.jobs() == 4


def test_closing_a_queue_closes_the_socket_of_a_loop_that_ended(url, queue_name, look):
    queue = Queue(queue_name, redis_url=url)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(queue.add("n", 1))
    loop.close()

    async def close_and_look() -> None:
        await queue.close()
        await until_closed(look)

    asyncio.run(close_and_look())
    del loop
    gc.collect()


@pytest.fixture
def tls_url(url, tmp_path):
    """The server behind TLS, served by a loop in a thread of its own."""
    authority = Authority(tmp_path)
    served, done = Future(), threading.Event()

    async def serve() -> None:
        async with FaultProxy(url, authority.server("good")) as proxy:
            served.set_result(f"{proxy.url}?ssl_ca_certs={authority.certificate}")
            await asyncio.to_thread(done.wait)

    with ThreadPoolExecutor(1) as thread:
        serving = thread.submit(lambda: asyncio.run(serve()))
        yield served.result(10)
        done.set()
        serving.result(10)


def test_the_socket_of_a_loop_that_ended_is_closed_under_tls(tls_url, queue_name, look):
    queue = Queue(queue_name, redis_url=tls_url)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(queue.add("n", 1))
    loop.close()

    async def add_and_look() -> None:
        await queue.add("n", 1)
        await until_closed(look, 1)
        await queue.close()

    asyncio.run(add_and_look())
    del loop
    gc.collect()


def test_threads_with_loops_of_their_own_share_a_queue(url, queue_name, look):
    queue = Queue(queue_name, redis_url=url)
    together = threading.Barrier(8)

    async def add_some() -> list[str]:
        together.wait()
        jobs = await asyncio.gather(*[queue.add("n", at) for at in range(50)])
        more = await queue.add_bulk([{"name": "n", "data": 1}] * 50)
        return [job.id for job in [*jobs, *more]]

    with ThreadPoolExecutor(8) as threads:
        added = list(threads.map(lambda _: asyncio.run(add_some()), range(8)))
    gc.collect()

    assert len({job_id for some in added for job_id in some}) == 800
    assert look.jobs() == 800
    assert look.connections() == 0


def test_closing_a_queue_closes_the_connections_of_other_threads(url, queue_name, look):
    queue = Queue(queue_name, redis_url=url)
    added, go_on = threading.Barrier(2), threading.Event()

    async def add_and_stay() -> str:
        await queue.add("n", 1)
        waiting = asyncio.ensure_future(queue.wait_for_result("never", timeout=60))
        await asyncio.sleep(0.1)
        await asyncio.to_thread(added.wait)
        await asyncio.to_thread(go_on.wait)
        with pytest.raises(StoreError, match="is closed"):
            await waiting
        with pytest.raises(StoreError, match="is closed"):
            await queue.add("n", 2)
        return "refused"

    async def close_here() -> None:
        await queue.add("n", 1)
        await queue.close()
        await until_closed(look)

    with ThreadPoolExecutor(1) as threads:
        other = threads.submit(lambda: asyncio.run(add_and_stay()))
        added.wait()
        asyncio.run(close_here())
        go_on.set()

        assert other.result(10) == "refused"


def test_closing_a_queue_while_other_threads_end_cancels_nobody(url, queue_name, look):
    """Adders that hear of the close end their loops, and their loops cancel what closes there."""
    queue = Queue(queue_name, redis_url=url)
    added: list[int] = []

    async def add_until_closed() -> None:
        with suppress(StoreError):
            while True:
                await queue.add("n", 1)
                added.append(1)

    async def close() -> None:
        await eventually(lambda: len(added) > 100)
        await queue.close()

    with ThreadPoolExecutor(4) as threads:
        adding = [threads.submit(lambda: asyncio.run(add_until_closed())) for _ in range(4)]
        asyncio.run(close())
        for one in adding:
            one.result(10)

    # An add that was cut off may have arrived; one that was confirmed has.
    assert look.jobs() >= len(added)


def test_closing_a_queue_frees_a_loop_that_stands_still(url, queue_name, loop, look):
    queue = Queue(queue_name, redis_url=url)
    loop.run_until_complete(queue.add("n", 1))

    asyncio.run(queue.close())
    loop.run_until_complete(until_closed(look))

    with pytest.raises(StoreError, match="is closed"):
        loop.run_until_complete(queue.add("n", 1))


async def test_a_queue_adds_no_task_and_leaves_none(url, queue_name):
    before = asyncio.all_tasks()
    async with Queue(queue_name, redis_url=url) as queue:
        await queue.add("n", 1)
        assert asyncio.all_tasks() == before
    gc.collect()
    await asyncio.sleep(0)

    assert asyncio.all_tasks() == before


async def test_a_queue_that_nobody_keeps_closes_its_connection(url, queue_name, look):
    queue = Queue(queue_name, redis_url=url)
    await queue.add("n", 1)
    assert look.connections() == 1

    del queue
    gc.collect()

    await until_closed(look)


def test_a_producer_works_in_two_runs_under_an_id_each(url, queue_name, look):
    producer = Producer(url, queue_name)

    for _ in range(2):
        asyncio.run(producer.add(b"data"))

    asyncio.run(producer.shutdown())
    assert look.jobs() == 2
    assert look.connections() == 0


def test_an_inspector_works_in_two_runs(url, queue_name, look):
    inspector = Inspector(redis_url=url)

    found = [asyncio.run(inspector.snapshot(queue_name)).queue for _ in range(2)]
    gc.collect()

    assert found == [queue_name] * 2
    assert look.connections() == 0


def test_events_go_on_in_the_next_run_where_the_last_one_ended(url, queue_name, look):
    queue = Queue(queue_name, redis_url=url, events_enabled=True)
    events = QueueEvents(queue_name, redis_url=url, last_event_id="0", block_ms=100, count=1)

    async def add_and_hear(count: int) -> list[str]:
        jobs = [await queue.add("n", at, delay_ms=60_000) for at in range(count)]
        heard = [(await anext(events)).job_id for _ in jobs]
        return [job.id for job in jobs if job.id not in heard]

    assert [asyncio.run(add_and_hear(2)) for _ in range(3)] == [[]] * 3
    assert queue.events_dropped_count == 0
    gc.collect()
    assert look.connections() == 0


def test_results_are_waited_for_in_every_run(url, queue_name, look):
    queue = Queue(queue_name, redis_url=url)

    for _ in range(2):
        with pytest.raises(TimeoutError):
            asyncio.run(queue.wait_for_result("never", timeout=0.2))
    gc.collect()

    assert look.connections() == 0
