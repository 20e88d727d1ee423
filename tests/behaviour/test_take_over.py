"""Looking for the jobs of the dead costs a server the same, however many workers look."""

from __future__ import annotations

import asyncio
import re

import pytest

from chasquimq.engine.reader import Claimer
from chasquimq.settings import (
    AbilitySettings,
    ConnectionSettings,
    ReadSettings,
    ResultSettings,
)
from chasquimq.store.consumer.store import ConsumerStore
from support.waiting import eventually, patience

PENDING, WORKERS = 50_000, 300
LEASE_MS = 30_000
WATCHED_S = 6
SERVER_SHARE_MAX = 0.05
FILL = """
for i = 1, ARGV[1] do redis.call('XADD', KEYS[1], '*', 'd', 'x') end
return #redis.call('XREADGROUP', 'GROUP', 'default', 'busy', 'COUNT', ARGV[1], 'STREAMS', KEYS[1], '>')
"""
# A server whose processor time is that of this test.
pytestmark = pytest.mark.own_server


@pytest.fixture
async def store(url, queue_name):
    """A worker's store on a server that cannot claim while it reads, or is not asked to."""
    store = ConsumerStore(
        queue_name, "default", "me", ConnectionSettings(url=url), ReadSettings(),
        AbilitySettings(claim_on_read=False), LEASE_MS, ResultSettings(),
    )  # fmt: skip
    await store.open()
    yield store
    await store.close()


async def cpu_s(raw) -> float:
    facts = (await raw("INFO", "cpu")).decode()
    return sum(float(one) for one in re.findall(r"used_cpu_(?:user|sys):([\d.]+)", facts))


async def share_of(raw, work) -> float:
    """Server time over time while the work is done."""
    before_s = await cpu_s(raw)
    await work
    return (await cpu_s(raw) - before_s) / WATCHED_S


async def look_like_a_busy_worker(store: ConsumerStore, at: int) -> None:
    """Ask as often as a worker that always has room for one more job."""
    claimer = Claimer(store, LEASE_MS)
    await asyncio.sleep(at / WORKERS)
    async with asyncio.timeout(WATCHED_S - at / WORKERS):
        while True:
            assert (await claimer.claim(1, is_idle=False)).size == 0
            await asyncio.sleep(claimer.block_ms(500, is_idle=False) / 1000)


async def fleet(store: ConsumerStore) -> None:
    workers = [look_like_a_busy_worker(store, at) for at in range(WORKERS)]
    ends = await asyncio.gather(*workers, return_exceptions=True)
    assert {type(one) for one in ends} == {TimeoutError}


async def test_three_hundred_workers_look_for_the_price_of_a_few(store, raw, kind):
    for _ in range(PENDING // 5_000):
        await raw("EVAL", FILL, 1, raw.keys.stream, 5_000)
    idle_share = await share_of(raw, asyncio.sleep(WATCHED_S))

    share = await share_of(raw, fleet(store)) - idle_share

    print(f"{kind.label}: {WORKERS} workers at {PENDING} pending: {share:.1%} of a core")
    assert share <= SERVER_SHARE_MAX * patience()


async def test_what_falls_silent_between_two_looks_is_found_in_time(store, raw):
    """The fleet knows from the last look when the next one is worth while."""
    await raw("XADD", raw.keys.stream, "*", "d", "x")
    await raw("XREADGROUP", "GROUP", "default", "dead", "STREAMS", raw.keys.stream, ">")
    ((entry_id, *_),) = await raw.pending()
    idle_ms = LEASE_MS - 2_000
    await raw("XCLAIM", raw.keys.stream, "default", "dead", 0, entry_id, "IDLE", idle_ms, "JUSTID")
    claimer = Claimer(store, LEASE_MS)

    async def look():
        return (await claimer.claim(1, is_idle=True)).size

    assert not await look()
    blocks_ms = claimer.block_ms(5_000, is_idle=True)
    await eventually(look, within_s=3)

    assert 1_000 < blocks_ms <= 2_000
