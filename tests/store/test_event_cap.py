"""The events stream keeps to its cap, give or take what a writer sends between two trims."""

from __future__ import annotations

from chasquimq.model.delivery import Delivery
from chasquimq.settings import ConnectionSettings
from chasquimq.store.events import EventStore
from chasquimq.store.net.reconnect import ReconnectingConnection
from support.faultproxy import FaultProxy
from support.waiting import eventually

CAP = 1_000


def deliveries(count):
    return [
        Delivery(b"1-1", f"j{at}", "mail", b"", 1_794_726_955_290, 0, 0, None, None, None, b"")
        for at in range(count)
    ]


async def test_a_busy_writer_keeps_the_stream_short(url, queue_name, raw):
    link = ReconnectingConnection(ConnectionSettings(url=url))
    await link.connection()
    store = EventStore(queue_name, "w", CAP, link)
    lengths = []
    for _ in range(100):
        store.started(deliveries(100))
        lengths.append(await raw("XLEN", raw.keys.events))
    await link.call("PING")
    await link.close()

    assert store.dropped_count == 0
    assert max(lengths) <= 2 * CAP + 200
    assert lengths[-1] >= CAP


async def test_events_whose_reply_was_lost_are_unproven_and_not_dropped(url, queue_name, raw):
    async with FaultProxy(url) as proxy:
        link = ReconnectingConnection(ConnectionSettings(url=proxy.url))
        await link.connection()
        store = EventStore(queue_name, "w", CAP, link)
        proxy.drop_replies()
        store.started(deliveries(5))

        async def are_written():
            return await raw("XLEN", raw.keys.events) == 5

        await eventually(are_written)
        proxy.cut()
        await eventually(lambda: store.unproven_count == 5)
        await link.close()

    assert store.dropped_count == 0


async def test_events_that_were_never_sent_are_dropped_and_not_unproven(url, queue_name):
    link = ReconnectingConnection(ConnectionSettings(url=url))
    await link.connection()
    store = EventStore(queue_name, "w", CAP, link)
    await link.close()

    store.started(deliveries(5))

    assert (store.dropped_count, store.unproven_count) == (5, 0)


async def test_a_stream_that_was_left_too_long_is_cut_by_the_first_event(url, queue_name, raw):
    for _ in range(3):
        await raw("XADD", raw.keys.events, "*", "e", "active", "id", "x")
    link = ReconnectingConnection(ConnectionSettings(url=url))
    await link.connection()
    store = EventStore(queue_name, "w", 1, link)
    for _ in range(300):
        await raw("XADD", raw.keys.events, "*", "e", "active", "id", "x")

    store.started(deliveries(1))

    async def is_short():
        return await raw("XLEN", raw.keys.events) <= 110

    await eventually(is_short)
    await link.close()
