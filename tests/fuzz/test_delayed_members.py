"""Two parsers of one format: what Lua makes of a delayed member is what Python makes of it."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chasquimq import Queue
from chasquimq.errors import DecodeError
from chasquimq.store.upkeep import UpkeepStore
from chasquimq.wire.envelope import decode_envelope
from chasquimq.wire.stream_entry import encode_member, split_member
from fuzz.seeds import RUN_S_MAX, budget, envelopes, golden, mutated
from support.raw import Raw

PAGE_MAX = 1_000
MALFORMED = b"malformed_delayed"


@st.composite
def announced(draw) -> bytes:
    """A prefix that promises any length, before some bytes."""
    length = draw(st.sampled_from([0, 1, 2, 255, 256, 65_536, 2**31, 2**32 - 1]))
    return struct.pack("<I", length) + draw(st.binary(max_size=12))


@st.composite
def named(draw) -> bytes:
    """A whole member whose envelope has seen accidents."""
    name = draw(st.binary(max_size=12))
    return struct.pack("<I", len(name)) + name + draw(mutated(envelopes()))


known = golden("delayed_members", "member_hex")
short = [b"", *(bytes([value]) * size for value in (0, 1, 255) for size in range(1, 9))]
members = (
    mutated(known) | announced() | named() | st.sampled_from(short) | st.binary(max_size=24)
)  # fmt: skip


def split_by_python(member: bytes) -> tuple[bytes | None, bytes, bytes]:
    """Name, envelope and reason as the promoter should write them."""
    try:
        _, envelope = split_member(member)
    except DecodeError:
        return None, member, MALFORMED
    return member[4 : len(member) - len(envelope)] or None, envelope, b""


async def split_by_lua(raw: Raw) -> list[tuple[bytes | None, bytes, bytes]]:
    """The same, as the promoter wrote them."""
    moved = [fields for _, fields in await raw.entries(raw.keys.stream)]
    return [
        (fields.get(b"n"), fields[b"d"], fields.get(b"reason", b""))
        for fields in (*moved, *await raw.dlq())
    ]


@pytest.fixture
def promoted(url, queue_name):
    """What a promoter makes of members that are due."""

    async def promote(batch: list[bytes]) -> list[tuple[bytes | None, bytes, bytes]]:
        async with Queue(queue_name, redis_url=url) as queue:
            raw = await Raw.open(url, queue_name)
            await raw("DEL", raw.keys.stream, raw.keys.dlq)
            for member in batch:
                await raw("ZADD", raw.keys.delayed, 1, member)
            done = await UpkeepStore(queue_name, queue._store().connection).promote(PAGE_MAX)
            assert (done.moved + done.bad, done.depth) == (len(batch), 0)
            found = await split_by_lua(raw)
            await raw.close()
        return found

    return promote


@pytest.mark.timeout(RUN_S_MAX)
async def test_lua_and_python_read_every_member_alike(promoted):
    batch = sampled(members, 300)

    found = await promoted(batch)

    assert sorted(found, key=repr) == sorted(map(split_by_python, batch), key=repr)


@pytest.mark.timeout(RUN_S_MAX)
async def test_lua_finds_the_ids_that_python_finds(url, queue_name):
    """Cancelling goes through Lua's own look at the envelope."""
    batch = [one for one in sampled(members, 200) if our_id(one)]
    raw = await Raw.open(url, queue_name)
    ids = {our_id(member): member for member in batch}
    for member in ids.values():
        await raw("ZADD", raw.keys.delayed, 1, member)
        await raw("HSET", raw.keys.dix, our_id(member), 1)

    async with Queue(queue_name, redis_url=url) as queue:
        cancelled = [await queue.cancel_delayed(job_id) for job_id in ids]

    assert len(ids) > 20
    assert cancelled == [True] * len(ids)
    assert await raw("ZCARD", raw.keys.delayed) == await raw("HLEN", raw.keys.dix) == 0
    await raw.close()


@pytest.mark.timeout(RUN_S_MAX)
async def test_lua_and_python_spell_the_same_member(url, queue_name):
    names = sampled(st.text(max_size=60), 40)
    async with Queue(queue_name, redis_url=url) as queue:
        plans = [{"name": name, "data": [name], "delay_ms": 3_600_000} for name in names]
        await queue.add_bulk(plans)
    raw = await Raw.open(url, queue_name)
    members = await raw("ZRANGE", raw.keys.delayed, 0, -1)
    await raw.close()

    spelled = [encode_member(*split_member(member)) for member in members]

    assert spelled == members
    assert sorted(split_member(member)[0] for member in members) == sorted(names)


def our_id(member: bytes) -> str | None:
    """The job id, where the member is spelled as we and the original spell one."""
    try:
        _, envelope = split_member(member)
        job_id = decode_envelope(envelope).id
    except DecodeError:
        return None
    is_ours = 0x93 <= envelope[0] <= 0x95 and envelope[1] in (*range(0xA1, 0xC0), 0xD9, 0xDA)
    return job_id if is_ours and job_id.strip() and len(job_id.encode()) <= 256 else None


def sampled(strategy: st.SearchStrategy, count: int) -> list:
    """Many examples at once, each of them once; a round trip for each would take too long."""
    found: dict = {}

    @budget(count)
    @given(strategy)
    def gather(value) -> None:
        found[value] = None

    gather()
    return list(found)
