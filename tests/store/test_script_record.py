"""record.lua: an entry of the history is written once, however often it is sent."""

from __future__ import annotations

import pytest

from chasquimq.errors import StoreError
from chasquimq.model.delivery import Delivery
from chasquimq.settings import ConnectionSettings
from chasquimq.store.history import HistoryStore
from chasquimq.store.net.connection import ServerClock
from chasquimq.store.net.reconnect import ReconnectingConnection
from chasquimq.store.net.script import script
from chasquimq.wire.history import decode_history
from support.faultproxy import LosesOneReply


@pytest.fixture
def record(run, raw):
    async def call(seq, *fields, len_max=0, ttl_s=60):
        keys = [raw.keys.history, raw.keys.token("history:run")]
        return await run("record", keys, seq, len_max, ttl_s, *(fields or ("s", seq)))

    return call


@pytest.fixture
async def history(url, queue_name):
    link = ReconnectingConnection(ConnectionSettings(url=url))
    yield HistoryStore(queue_name, "w", 1_000_000, link, ServerClock())
    await link.close()


def delivery(job_id, duration_us=5):
    return Delivery(
        entry_id=b"1794726955294-0", job_id=job_id, name="mail", payload=b"",
        created_at_ms=1_794_726_955_290, spent=0, earlier=0, retry=None, extras=None, due_ms=None,
        envelope=b"", started_ns=1_000, duration_us=duration_us,
    )  # fmt: skip


async def test_an_entry_is_written_with_its_fields(record, raw):
    assert await record(1, "a", b"\x00\xff") == 1

    assert [fields for _, fields in await raw.entries(raw.keys.history)] == [{b"a": b"\x00\xff"}]


async def test_an_entry_that_was_written_is_not_written_again(record, raw):
    assert [await record(1), await record(2), await record(2), await record(1)] == [1, 1, 0, 0]

    assert await raw("XLEN", raw.keys.history) == 2


async def test_the_marker_of_a_run_does_not_stay_for_ever(record, raw):
    await record(1, ttl_s=60)

    assert 0 < await raw("TTL", raw.keys.token("history:run")) <= 60


async def test_a_cap_makes_room_for_the_new(record, raw):
    for seq in range(1, 301):
        await record(seq, "s", seq, "b", "x" * 5_000, len_max=20)

    entries = await raw.entries(raw.keys.history)
    assert len(entries) == 20
    assert entries[-1][1][b"s"] == b"300"


async def test_what_cannot_be_written_leaves_no_marker(record, raw):
    await raw("SET", raw.keys.history, "somebody's")

    with pytest.raises(StoreError):
        await record(1)

    assert await raw("EXISTS", raw.keys.token("history:run")) == 0


async def test_a_lost_reply_doubles_no_entry(url, queue_name, raw):
    async with LosesOneReply(url) as proxy:
        link = ReconnectingConnection(ConnectionSettings(url=proxy.url))
        store = HistoryStore(queue_name, "w", 1_000_000, link, ServerClock())
        store.completed([delivery("a")])
        await store.flush()
        store.completed([delivery("b")])
        proxy.lost = script("record").sha.encode()
        with pytest.raises(StoreError):
            await store.flush()
        store.completed([delivery("c")])
        await store.flush(is_last=True)
        await link.close()

    entries = [decode_history(e[1]) for e in await raw("XRANGE", raw.keys.history, "-", "+")]
    assert [(e.seq, [row.job_id for row in e.rows()]) for e in entries] == [
        (1, ["a"]),
        (2, ["b"]),
        (3, ["c"]),
    ]
    assert [e.is_last for e in entries] == [False, False, True]


@pytest.mark.parametrize("odd_count", [1, 50], ids=["when packed", "as it comes"])
async def test_rows_that_cannot_be_spelled_are_told_as_lost_once(history, raw, odd_count):
    history.completed([delivery(f"a{at}") for at in range(50)])
    history.completed([delivery("odd", duration_us=2**66)] * odd_count)
    await history.flush()
    history.completed([delivery("b")])
    await history.flush()

    first, second = [decode_history(e[1]) for e in await raw("XRANGE", raw.keys.history, "-", "+")]
    assert [row.job_id for row in first.rows()] == [f"a{at}" for at in range(50)]
    assert [row.job_id for row in second.rows()] == ["b"]
    assert (first.seq, first.lost, second.seq, second.lost) == (1, odd_count, 2, 0)
    assert history.dropped_count == odd_count


async def test_rows_that_waited_with_one_that_cannot_be_spelled_are_counted(history, raw):
    history.completed([delivery("waited"), delivery("odd", duration_us=2**66)])
    history.completed([delivery(f"a{at}") for at in range(50)])
    history.completed([delivery("b")])
    await history.flush()

    (entry,) = [decode_history(e[1]) for e in await raw("XRANGE", raw.keys.history, "-", "+")]
    assert [row.job_id for row in entry.rows()] == ["b"]
    assert entry.lost == history.dropped_count == 52
