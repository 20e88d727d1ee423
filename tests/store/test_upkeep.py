"""Promotion through the store: what the script moved is also out of the other index."""

from __future__ import annotations

import pytest

from chasquimq.settings import ConnectionSettings
from chasquimq.store.net.reconnect import ReconnectingConnection
from chasquimq.store.upkeep import UpkeepStore
from chasquimq.wire.envelope import encode_envelope
from chasquimq.wire.stream_entry import encode_member


@pytest.fixture
async def upkeep(url, queue_name):
    link = ReconnectingConnection(ConnectionSettings(url=url))
    yield UpkeepStore(queue_name, link)
    await link.close()


async def test_a_promoted_job_cannot_be_found_by_either_index(upkeep, raw):
    member = encode_member("n", encode_envelope("job", b"\x01", 1))
    await raw("ZADD", raw.keys.delayed, 1, member)
    await raw("SET", raw.keys.didx("job"), member)

    promoted = await upkeep.promote(256)

    assert (promoted.moved, promoted.depth, promoted.bad) == (1, 0, 0)
    assert await raw("EXISTS", raw.keys.didx("job")) == 0


async def test_an_id_that_is_no_text_stops_nobody(upkeep, raw):
    await raw("ZADD", raw.keys.delayed, 1, encode_member("", b"\x94\xa2\xff\xfe\xc4\x00\x01\x00"))
    await raw("ZADD", raw.keys.delayed, 2, encode_member("", encode_envelope("b", b"\x01", 1)))
    await raw("SET", raw.keys.didx("b"), "member")

    promoted = await upkeep.promote(256)

    assert promoted.moved == 2
    assert await raw("EXISTS", raw.keys.didx("b")) == 0


@pytest.mark.parametrize("own_id", [None, "mine"], ids=["a fresh id", "an id of its caller"])
async def test_a_forged_member_leaves_the_job_whose_id_it_carries_cancellable(
    upkeep, raw, queue, own_id
):
    job = await queue.add("n", 1, delay_ms=60_000, job_id=own_id)
    size = bytes([0xA0 + len(job.id)])
    await raw("ZADD", raw.keys.delayed, 1, encode_member("", b"\x94" + size + job.id.encode()))

    promoted = await upkeep.promote(256)

    assert (promoted.moved, promoted.depth) == (1, 1)
    assert await queue.cancel_delayed(job.id)
    assert await raw("EXISTS", raw.keys.delayed, raw.keys.dix, raw.keys.didx(job.id)) == 0


@pytest.mark.parametrize(("page_max", "is_full"), [(1, True), (2, False)])
async def test_a_full_page_says_that_more_may_be_due(upkeep, raw, page_max, is_full):
    await raw("ZADD", raw.keys.delayed, 1, b"\0\0\0\0a", 2, b"\0\0\0\0b")

    assert (await upkeep.promote(page_max)).is_full is is_full


@pytest.mark.parametrize("name", ["", "n"])
async def test_waiting_events_that_are_refused_are_counted_and_keep_no_job_back(
    url, queue_name, raw, name
):
    link = ReconnectingConnection(ConnectionSettings(url=url))
    upkeep = UpkeepStore(queue_name, link, waiting_events_max=100)
    await raw("SET", raw.keys.events, "no stream")
    for job_id in "abc":
        member = encode_member(name, encode_envelope(job_id, b"\x01", 1))
        await raw("ZADD", raw.keys.delayed, 1, member)

    promoted = await upkeep.promote(256)
    await link.close()

    assert (promoted.moved, upkeep.dropped_count) == (3, 3)
    assert await raw("XLEN", raw.keys.stream) == 3
