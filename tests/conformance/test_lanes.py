"""Two streams of one queue may hold the same entry id; their jobs are held and settled apart."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from chasquimq.engine.in_flight import InFlight
from chasquimq.engine.settlement import Settlement
from chasquimq.errors import UnrecoverableError
from chasquimq.model.delivery import Burying
from chasquimq.model.retry import BackoffDefaults, RetryPolicy
from chasquimq.settings import (
    ConnectionSettings,
    ReadSettings,
    ResultSettings,
    WorkerSettings,
)
from chasquimq.store.consumer.decode import encode_result
from chasquimq.store.consumer.lease import LeaseStore
from chasquimq.store.consumer.store import ConsumerStore
from chasquimq.telemetry.tracing import Tracing
from chasquimq.wire.keys import Lane
from chasquimq.worker.hooks import RunSpans

LEASE_MS = 30_000
STALE_MS = 3_600_000
SAME_ID = b"5-1"
IN_MAIN, IN_HIGH = SAME_ID, b"h" + SAME_ID
POLICY = RetryPolicy(3, BackoffDefaults(initial_backoff_ms=1_000, jitter_ms=0), 5_000, 600_000)


@pytest.fixture
def high(raw) -> Lane:
    at = raw.keys.stream.removesuffix("stream") + "lane:high:"
    return Lane(1, f"{at}stream", f"{at}delayed", f"{at}dix")


@pytest.fixture(params=[False, True], ids=["no results", "results"])
def results(request) -> ResultSettings:
    return ResultSettings(is_stored=request.param)


@pytest.fixture
async def consumer(url, queue_name, abilities, high, results):
    opened = []

    async def open_one(name: str) -> ConsumerStore:
        store = ConsumerStore(
            queue_name, "default", name, ConnectionSettings(url=url), ReadSettings(),
            abilities, LEASE_MS, results, lanes=[high],
        )  # fmt: skip
        await store.open()
        opened.append(store)
        return store

    yield open_one
    for store in opened:
        await store.close()


@pytest.fixture
async def me(consumer) -> ConsumerStore:
    return await consumer("me")


@pytest.fixture
async def deliveries(queue, raw, high, me):
    """One job of each stream, read by us; both have the same entry id."""
    await queue.add("n", 1)
    ((_, fields),) = await raw("XRANGE", raw.keys.stream, "-", "+")
    await raw("XTRIM", raw.keys.stream, "MAXLEN", 0)
    for stream in (raw.keys.stream, high.stream):
        # The id of the first add is beyond this one: the stream is told to begin anew.
        await raw("XSETID", stream, "0-0")
        await raw("XADD", stream, SAME_ID, *fields)
    batches = [await me.read(1, 0), await me.read(1, 0, lane=1)]
    return [batch.deliveries[0] for batch in batches]


@pytest.fixture
async def settlement(me, deliveries, results) -> Settlement:
    in_flight = InFlight(10, ReadSettings(), lambda _: 25)
    for delivery in deliveries:
        in_flight.admit([delivery])
        delivery.started_ns = 1
    settings = WorkerSettings(results=results)
    return Settlement(me, in_flight, POLICY, settings, encode=encode_result)


async def settle_all(settlement: Settlement) -> None:
    for loop in settlement.loops:
        if not loop.is_empty:
            await loop.run_once()


async def owners(raw, stream: str) -> dict[bytes, tuple[bytes, int]]:
    rows = await raw("XPENDING", stream, "default", "-", "+", 10)
    return {row[0]: (row[1], row[3]) for row in rows}


async def test_the_same_id_of_two_streams_is_held_twice_and_released_once(settlement, deliveries):
    in_flight = settlement.in_flight
    in_main, in_high = deliveries

    assert (in_main.entry_id, in_high.entry_id) == (SAME_ID, SAME_ID)
    assert in_flight.keys() == [IN_MAIN, IN_HIGH]
    assert in_flight.admit([in_high]) == [in_high]  # the same one a second time

    in_flight.release([IN_HIGH])

    assert in_flight.get(IN_HIGH) is None
    assert in_flight.get(IN_MAIN) is in_main


async def test_one_is_completed_and_the_other_one_waits(settlement, deliveries, raw, high):
    settlement.complete(deliveries[1], None)

    await settle_all(settlement)

    assert settlement.in_flight.keys() == [IN_MAIN]
    assert await raw("XLEN", high.stream) == 0
    assert await owners(raw, raw.keys.stream) == {SAME_ID: (b"me", 1)}


async def test_both_are_completed_in_one_batch(settlement, deliveries, raw, high):
    for delivery in deliveries:
        settlement.complete(delivery, None)

    await settle_all(settlement)

    assert settlement.counters.completed == 2
    assert settlement.in_flight.held_count == 0
    assert (await raw("XLEN", raw.keys.stream), await raw("XLEN", high.stream)) == (0, 0)


async def test_each_run_has_a_span_of_its_own(deliveries, queue_name):
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    spans = RunSpans(Tracing(provider), queue_name, "default", "me")
    begin = spans.around(lambda _: (None, None))
    for delivery in deliveries:
        begin(delivery)
        delivery.started_ns = 1

    spans.completed(deliveries)

    assert len(exporter.get_finished_spans()) == 2


async def test_a_lost_end_of_one_stream_is_not_the_end_of_the_other(
    settlement, deliveries, raw, high
):
    await raw("XACK", high.stream, "default", SAME_ID)
    await raw("XDEL", high.stream, SAME_ID)
    for delivery in reversed(deliveries):
        settlement.complete(delivery, None)

    await settle_all(settlement)

    assert (settlement.counters.completed, settlement.counters.stale_outcomes) == (1, 1)
    assert await raw("XLEN", raw.keys.stream) == 0


async def test_a_failed_run_is_retried_in_its_own_lane(settlement, deliveries, raw, high):
    settlement.fail(deliveries[1], ValueError("no"))

    await settle_all(settlement)

    assert settlement.in_flight.keys() == [IN_MAIN]
    assert (await raw("ZCARD", high.delayed), await raw("ZCARD", raw.keys.delayed)) == (1, 0)
    assert await raw("XLEN", high.stream) == 0
    assert await raw("XLEN", raw.keys.stream) == 1


async def test_each_is_buried_from_its_own_stream(settlement, deliveries, raw, high):
    settlement.fail(deliveries[0], ValueError("no"))
    settlement.fail(deliveries[1], UnrecoverableError("no"))

    await settle_all(settlement)

    assert (settlement.counters.retried, settlement.counters.buried) == (1, 1)
    assert await raw("XLEN", raw.keys.dlq) == 1
    assert (await raw("XLEN", raw.keys.stream), await raw("XLEN", high.stream)) == (0, 0)
    assert (await raw("ZCARD", raw.keys.delayed), await raw("ZCARD", high.delayed)) == (1, 0)


async def test_what_cannot_be_decoded_is_buried_from_its_own_stream(me, deliveries, raw, high):
    entry_id = await raw("XADD", high.stream, "6-1", "no", "job")
    (entry,) = (await me.read(10, 0, lane=1)).rejected

    done = await me.bury([Burying(entry, entry.reason, 0)])

    assert (entry.key, done) == (b"h" + entry_id, [1])
    assert await raw("XLEN", high.stream) == 1
    assert await raw("XLEN", raw.keys.stream) == 1


async def test_counts_are_set_and_entries_given_back_apart(me, deliveries, raw, high):
    assert await me.charge([(IN_MAIN, 3), (IN_HIGH, 5)]) == []
    assert dict(await me.pending()) == {IN_MAIN: 3, IN_HIGH: 5}

    assert await me.requeue([(IN_HIGH, 4)]) == 1

    assert await owners(raw, high.stream) == {SAME_ID: (b"returned", 4)}
    assert await owners(raw, raw.keys.stream) == {SAME_ID: (b"me", 3)}


async def test_a_stolen_entry_is_named_by_its_key(me, deliveries, raw, high, url, queue_name):
    await raw("XCLAIM", high.stream, "default", "thief", 0, SAME_ID)
    lease = LeaseStore(
        queue_name, "default", "me", ConnectionSettings(url=url), 1_000, lanes=[high]
    )

    assert lease.renew({IN_MAIN, IN_HIGH}) == [IN_HIGH]
    assert lease.pending() == [IN_MAIN]
    assert await me.charge([(IN_MAIN, 1), (IN_HIGH, 1)]) == [IN_HIGH]
    lease.close()


async def test_what_the_dead_left_is_taken_over_lane_by_lane(consumer, deliveries, raw, high):
    other = await consumer("other")
    for stream in (raw.keys.stream, high.stream):
        await raw("XCLAIM", stream, "default", "me", 0, SAME_ID, "IDLE", STALE_MS, "JUSTID")

    if other.abilities.claim_on_read:
        batch = await other.read(10, 0, lane=1)
    else:
        batch, _ = await other.claim(10, lane=1)

    assert [one.key for one in batch.deliveries] == [IN_HIGH]
    assert [one.key for one in batch.taken_over] == [IN_HIGH]
    assert (await owners(raw, raw.keys.stream))[SAME_ID][0] == b"me"


async def test_a_consumer_leaves_when_none_of_its_lanes_holds_anything(me, deliveries, raw, high):
    await me.ack([IN_MAIN])
    assert not await me.remove_consumer()

    await me.ack([IN_HIGH])

    assert await me.remove_consumer()
    assert await raw("XINFO", "CONSUMERS", high.stream, "default") == []
