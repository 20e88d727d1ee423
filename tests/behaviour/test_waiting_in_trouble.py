"""Waiting for results where the server is away, or where some wait in a hurry."""

from __future__ import annotations

import asyncio
import time

import pytest

from chasquimq import Queue
from chasquimq.errors import ConnectionLost, ServerUnreachable
from chasquimq.queue.results import ResultWatch
from chasquimq.settings import ConnectionSettings
from chasquimq.store.event_reader import EndReader
from chasquimq.store.results import ResultStore
from store.fake_server import OLD, FakeServer
from support.faultproxy import FaultProxy
from support.waiting import eventually


class Asked(FaultProxy):
    """Counts how often it is asked for results."""

    count = 0

    async def request(self, chunk, pipe):
        self.count += chunk.count(b"MGET") // 2
        return await super().request(chunk, pipe)

    async def per_second(self) -> float:
        before, began_s = self.count, time.monotonic()
        await asyncio.sleep(1)
        return (self.count - before) / (time.monotonic() - began_s)


@pytest.fixture
async def asked(url):
    async with Asked(url) as proxy:
        yield proxy


@pytest.fixture
async def far_queue(asked, queue_name):
    async with Queue(queue_name, redis_url=asked.url) as queue:
        yield queue


@pytest.fixture
async def waits():
    """Tasks that wait until the test ends."""
    tasks = []

    def start(awaitable):
        tasks.append(asyncio.ensure_future(awaitable))
        return tasks[-1]

    yield start
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


LETTER = {"dlq_id": "1-0", "source_id": "1-0", "reason": "panic", "name": "n", "payload": b"?"}
QUESTIONS = {
    "counts": lambda queue: queue.counts(),
    "peek_dlq": lambda queue: queue.peek_dlq(),
    "get_repeatable_jobs": lambda queue: queue.get_repeatable_jobs(),
    "get_job": lambda queue: queue.get_job("j"),
    "the plan of run_repeatable_now": lambda queue: queue.run_repeatable_now("key"),
    "a dry replay_dlq": lambda queue: queue.replay_dlq(dry_run=True),
    "a dry import_dlq": lambda queue: queue.import_dlq([LETTER], dry_run=True),
    "a dry cancel_delayed_where": lambda queue: queue.cancel_delayed_where(name="n", dry_run=True),
}


@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS)
async def test_a_question_without_an_answer_has_done_nothing(asked, queue_name, question):
    async with Queue(queue_name, redis_url=asked.url, command_timeout_ms=300) as queue:
        await queue.counts()
        asked.freeze()

        with pytest.raises(ConnectionLost) as lost:
            await question(queue)

    assert lost.value.outcome == "not_done"


async def test_who_is_in_a_hurry_is_heard_as_long_as_it_waits(far_queue, asked, waits):
    waits(far_queue.wait_for_result("patient", timeout=60, poll_interval=0.25))
    hurry = waits(far_queue.wait_for_result("hurried", timeout=60, poll_interval=0.001))
    await eventually(lambda: asked.count > 10)
    # Not even then is the server asked without a pause.
    assert await asked.per_second() <= 60

    hurry.cancel()
    await asyncio.wait([hurry])
    await asyncio.sleep(0.3)

    assert await asked.per_second() <= 6


async def test_waits_that_ended_leave_nothing_behind(far_queue, asked, waits):
    waits(far_queue.wait_for_result("j", timeout=60))
    for _ in range(50):
        with pytest.raises(TimeoutError):
            await far_queue.wait_for_result("j", timeout=0.001)

    await asyncio.sleep(0)
    assert far_queue._connections.parts().watch.waiting_count == 1


class NoServer:
    """A port where something accepts and hangs up; it counts the dials."""

    def __init__(self) -> None:
        self.dial_count = 0

    async def __aenter__(self):
        self._listener = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self.url = f"redis://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_):
        self._listener.close()

    async def _accepted(self, _, writer):
        self.dial_count += 1
        writer.close()


async def test_a_server_that_was_never_reached_is_told_at_once_and_dialled_once(queue_name):
    async with NoServer() as nobody, Queue(queue_name, redis_url=nobody.url) as queue:
        with pytest.raises(ServerUnreachable):
            await asyncio.wait_for(queue.wait_for_result("j", timeout=60), 10)

        assert nobody.dial_count == 1


async def test_a_wait_that_outlives_its_server_says_that_it_was_not_answered(
    far_queue, asked, waits
):
    waiting = waits(far_queue.wait_for_result("j", timeout=2))
    await eventually(lambda: asked.count > 2)

    asked.refuse()
    asked.cut()

    with pytest.raises(TimeoutError, match="the server"):
        await waiting


async def test_events_that_cannot_be_reached_are_not_dialled_without_end(
    far_queue, queue_name, waits
):
    async with NoServer() as nobody:
        settings = ConnectionSettings(url=nobody.url)
        store = ResultStore(queue_name, far_queue._store().connection)
        watch = ResultWatch(store, lambda: EndReader(queue_name, settings))
        waits(watch.wait("j", 0.1))

        await eventually(lambda: nobody.dial_count)
        await asyncio.sleep(3)
        await watch.close()

        # The pauses grow from a tenth of a second to six.
        assert nobody.dial_count <= 6


async def test_a_tail_that_ended_by_a_bug_is_told_and_listens_again(
    far_queue, queue_name, asked, raw, waits, caplog
):
    failed = []

    class FailsOnce(EndReader):
        async def read_ended(self):
            if not failed:
                failed.append(self)
                raise ValueError("a bug")
            return await super().read_ended()

    async def is_listening():
        lines = (await raw("CLIENT", "LIST")).splitlines()
        return any(b"name=chasqui-results " in one and b"cmd=xread " in one for one in lines)

    settings = ConnectionSettings(url=asked.url)
    store = ResultStore(queue_name, far_queue._store().connection)
    watch = ResultWatch(store, lambda: FailsOnce(queue_name, settings))
    waits(watch.wait("j", 0.1))

    await eventually(lambda: failed)
    await eventually(is_listening, what="a tail that listens again")

    await watch.close()
    assert caplog.text.count(f"the events of queue {queue_name} are not followed") == 1


async def test_a_tail_that_does_not_find_its_place_causes_no_looks(
    far_queue, queue_name, asked, waits
):
    class NeverSettles(EndReader):
        async def settle(self):
            await asyncio.sleep(0.02)

    settings = ConnectionSettings(url=asked.url)
    store = ResultStore(queue_name, far_queue._store().connection)
    watch = ResultWatch(store, lambda: NeverSettles(queue_name, settings))
    waits(watch.wait("j", 0.25))
    await eventually(lambda: asked.count)

    looks = await asked.per_second()

    await watch.close()
    assert looks <= 6


async def test_an_answer_that_nobody_understands_ends_every_wait_at_once(queue_name):
    async with (
        FakeServer({**OLD, "MGET": b":1\r\n"}) as server,
        Queue(queue_name, redis_url=server.url) as queue,
    ):
        waits = [queue.wait_for_result(f"job-{at}", timeout=60) for at in range(3)]

        ends = await asyncio.wait_for(asyncio.gather(*waits, return_exceptions=True), 10)

    assert {type(end) for end in ends} == {TypeError}
