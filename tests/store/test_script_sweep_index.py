"""sweep_index.lua: what the index says of jobs that are gone is forgotten, and nothing else."""

from __future__ import annotations

import pytest

from chasquimq.settings import ConnectionSettings
from chasquimq.store.inspect.queue import server_ms
from chasquimq.store.net.reconnect import ReconnectingConnection
from chasquimq.store.upkeep import JanitorStore
from chasquimq.wire.envelope import encode_envelope
from chasquimq.wire.stream_entry import encode_member

GRACE_MS = 1_000
HOUR_MS = 3_600_000


@pytest.fixture
def sweep(run, raw):
    async def call(cursor="0", page_max=500):
        keys = [raw.keys.delayed, raw.keys.dix]
        return await run("sweep_index", keys, cursor, page_max, GRACE_MS)

    return call


@pytest.fixture
async def janitor(url, queue_name):
    link = ReconnectingConnection(ConnectionSettings(url=url))
    yield JanitorStore(queue_name, "default", link)
    await link.close()


def member(job_id: str) -> bytes:
    return encode_member("n", encode_envelope(job_id, b"\x01", 1))


async def index(raw) -> set[bytes]:
    return set(await raw("HKEYS", raw.keys.dix))


async def test_an_entry_whose_time_has_passed_without_its_job_is_forgotten(sweep, raw):
    now_ms = await server_ms(raw.connection)
    await raw("ZADD", raw.keys.delayed, now_ms + HOUR_MS, member("waits"))
    await raw("HSET", raw.keys.dix, "waits", now_ms + HOUR_MS, "gone", now_ms - 60_000)

    assert await sweep() == [1, b"0"]
    assert await index(raw) == {b"waits"}


async def test_an_entry_of_a_job_that_is_overdue_stays(sweep, raw):
    """Nobody promotes, and each of these jobs can still be cancelled."""
    now_ms = await server_ms(raw.connection)
    for at in range(3):
        due_ms = now_ms - 60_000 - at
        await raw("ZADD", raw.keys.delayed, due_ms, member(f"late-{at}"))
        await raw("HSET", raw.keys.dix, f"late-{at}", due_ms)
    await raw("HSET", raw.keys.dix, "gone", now_ms - 50_000)

    assert await sweep() == [1, b"0"]
    assert await index(raw) == {b"late-0", b"late-1", b"late-2"}


@pytest.mark.parametrize("ahead_ms", [0, HOUR_MS], ids=["just now", "in an hour"])
async def test_an_entry_whose_time_has_not_clearly_passed_stays(sweep, raw, ahead_ms):
    now_ms = await server_ms(raw.connection)
    await raw("HSET", raw.keys.dix, "job", now_ms + ahead_ms)

    assert await sweep() == [0, b"0"]
    assert await index(raw) == {b"job"}


@pytest.mark.parametrize("value", ["", "soon", "nan"])
async def test_an_entry_that_is_no_time_names_no_job(sweep, raw, value):
    await raw("HSET", raw.keys.dix, "odd", value)

    assert await sweep() == [1, b"0"]
    assert await raw("EXISTS", raw.keys.dix) == 0


async def test_a_large_index_is_swept_page_by_page(janitor, sweep, raw):
    now_ms = await server_ms(raw.connection)
    pairs = [part for at in range(3_000) for part in (f"gone-{at}", now_ms - 60_000)]
    await raw("HSET", raw.keys.dix, *pairs, "waits", now_ms + HOUR_MS)
    await raw("ZADD", raw.keys.delayed, now_ms + HOUR_MS, member("waits"))

    found, cursor = await sweep()
    swept = await janitor.sweep_index()

    assert found < 1_000
    assert cursor != b"0"
    assert found + swept == 3_000
    assert await index(raw) == {b"waits"}


async def test_an_index_with_an_entry_for_each_member_is_not_walked(sweep, raw):
    now_ms = await server_ms(raw.connection)
    for at in range(20):
        await raw("ZADD", raw.keys.delayed, now_ms + HOUR_MS, member(f"job-{at}"))
        await raw("HSET", raw.keys.dix, f"job-{at}", now_ms - 60_000)

    assert await sweep(page_max=10) == [0, b"0"]
    assert len(await index(raw)) == 20


@pytest.mark.parametrize("key", ["delayed", "dix"])
async def test_a_key_of_the_wrong_type_is_left_as_it_is(sweep, raw, snapshot, key):
    await raw("HSET", raw.keys.dix, "gone", 1)
    await raw("SET", getattr(raw.keys, key), "odd")
    before = await snapshot()

    with pytest.raises(Exception, match="WRONGTYPE"):
        await sweep()

    assert await snapshot() == before
