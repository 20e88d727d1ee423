"""Completing entries: the native command and the script give the same answers."""

from __future__ import annotations

import pytest

from chasquimq.model.delivery import SettleResult

DONE, GONE = SettleResult.DONE, SettleResult.GONE


@pytest.fixture
async def me(consumer):
    return await consumer("me")


@pytest.fixture
async def entry_ids(queue, me):
    """Three entries that `me` has read."""
    await queue.add_bulk([{"name": "n", "data": i} for i in range(3)])
    return [delivery.entry_id for delivery in (await me.read(10, 0)).deliveries]


async def left(raw) -> tuple[list[bytes], list[bytes]]:
    """The ids in the stream, and those that are pending."""
    stream = [entry_id for entry_id, _ in await raw.entries(raw.keys.stream)]
    return stream, [row[0] for row in await raw.pending()]


async def test_held_entries_are_completed_and_gone(me, raw, entry_ids):
    assert await me.ack(entry_ids) == [DONE] * 3
    assert await left(raw) == ([], [])


async def test_answers_come_in_the_order_of_the_ids(me, raw, entry_ids):
    first, second, third = entry_ids

    assert await me.ack([third, b"1-1", first, third]) == [DONE, GONE, DONE, GONE]
    assert await left(raw) == ([second], [second])


async def test_a_second_ack_finds_the_entry_gone(me, entry_ids):
    await me.ack(entry_ids)

    assert await me.ack(entry_ids) == [GONE] * 3


async def test_anyone_may_complete_what_another_holds(consumer, me, raw, entry_ids):
    other = await consumer("other")

    assert await other.ack(entry_ids[:1]) == [DONE]
    assert await me.ack(entry_ids[:1]) == [GONE]


async def test_an_entry_that_was_never_read_stays_in_the_stream(me, queue, raw, entry_ids):
    await queue.add("unread", 1)
    (*_, (unread, _)) = await raw.entries(raw.keys.stream)

    assert await me.ack([unread]) == [GONE]
    assert unread in (await left(raw))[0]


async def test_a_pending_entry_whose_body_was_deleted_is_completed(me, raw, entry_ids):
    await raw("XDEL", raw.keys.stream, entry_ids[0])

    assert await me.ack(entry_ids[:1]) == [DONE]
    assert entry_ids[0] not in (await left(raw))[1]


async def test_acks_without_a_stream_find_nothing(me, raw):
    await raw("DEL", raw.keys.stream)

    assert await me.ack([b"1-1", b"1-2"]) == [GONE, GONE]


async def test_a_thousand_acks_fit_one_call(me, queue, raw):
    await queue.add_bulk([{"name": "n", "data": i} for i in range(1_000)])
    deliveries = (await me.read(1_000, 0)).deliveries

    assert await me.ack([d.entry_id for d in deliveries]) == [DONE] * 1_000
    assert await left(raw) == ([], [])
