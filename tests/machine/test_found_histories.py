"""Histories that the machine found, each kept as a test of its own."""

from __future__ import annotations

import pytest

from chasquimq.errors import ServerOutOfMemory
from chasquimq.settings import AbilitySettings, ConnectionSettings, ReadSettings, ResultSettings
from chasquimq.store.consumer.store import ConsumerStore
from chasquimq.wire.envelope import decode_envelope
from chasquimq.wire.stream_entry import split_member
from machine.stepped_worker import SteppedWorker, expire_leases, losing_the_reply


@pytest.mark.own_server
async def test_a_worker_that_opens_an_unknown_queue_on_a_full_server_hears_why(
    url, raw, queue_name
):
    await raw("CONFIG", "SET", "maxmemory", 1)
    store = ConsumerStore(
        queue_name, "default", "me", ConnectionSettings(url=url), ReadSettings(),
        AbilitySettings(), 30_000, ResultSettings(),
    )  # fmt: skip

    with pytest.raises(ServerOutOfMemory):
        await store.open()
    await store.close()


@pytest.fixture
async def join(url, queue_name):
    """Workers that are driven by hand."""
    workers = []

    async def new_worker(consumer: str) -> SteppedWorker:
        worker = SteppedWorker(url, queue_name, consumer, print)
        workers.append(await worker.open())
        return worker

    yield new_worker
    for worker in workers:
        await worker.crash()


async def comes_back_to_the_first(join, queue, raw) -> SteppedWorker:
    """Two workers stood still with the job, one after the other, and then the first read again."""
    await queue.add("slow", [1])
    first, second = await join("first"), await join("second")
    await first.read()
    await expire_leases(raw, "first")
    await second.read()
    await expire_leases(raw, "second")
    await first.read()
    return first


async def test_a_job_that_comes_back_to_a_worker_is_charged_with_what_others_ran(join, queue, raw):
    """It stood still, another took over and stood still, too: two runs are spent, not one."""
    first = await comes_back_to_the_first(join, queue, raw)
    await first.uncharge()

    await first.stop()
    third = await join("third")
    await third.read()

    (run,) = third.runs
    assert run.delivery.run_number == 3


async def test_a_failure_after_coming_back_spends_what_others_ran(join, queue, raw):
    first = await comes_back_to_the_first(join, queue, raw)

    await first.end(first.runs[0], ValueError("no"))
    await first.flush()

    (member,) = await raw("ZRANGE", raw.keys.delayed, 0, -1)
    assert decode_envelope(split_member(member)[1]).attempt == 2


async def test_a_resend_after_somebody_deleted_the_stream_adds_nothing_twice(queue, raw):
    """Telling the new stream how much to remember makes the server forget what it does remember."""
    await queue.add("warm", 0)
    await raw("DEL", raw.keys.stream)

    await losing_the_reply(queue._store().connection, queue.add("n", 1))

    assert await raw("XLEN", raw.keys.stream) == 1
