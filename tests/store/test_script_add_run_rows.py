"""add_run_rows.lua: rows known by their contents, each as often as it is there, whoever asks."""

from __future__ import annotations

import struct
from itertools import count

import pytest

from chasquimq.errors import StoreError
from chasquimq.store.producer.rows import bucket_keys
from chasquimq.wire.envelope import decode_envelope, encode_envelope
from chasquimq.wire.new_job import row_digests

KEEP_MS = 60_000


@pytest.fixture
def add(run, raw):
    """One call of an attempt: rows are texts, equal texts are equal rows."""
    tokens = count()

    async def call(*rows, task=0, attempt=0, instance="i1", cap=0, waits=None, token=None):
        keys = raw.keys
        named = [keys.stream, keys.token(token or f"t{next(tokens)}"), keys.delayed, keys.dix]
        named += bucket_keys(keys, "r")
        args = [cap, 120, KEEP_MS, instance, task, attempt, 1 if waits else 0]
        for at, text in enumerate(rows):
            args += (*job(text), *([waits[at]] if waits else []))
        return await run("add_run_rows", named, *args)

    return call


def job(text: str) -> tuple[bytes, str, bytes]:
    (digest,) = row_digests("r", ["greet"], [text.encode()])
    return encode_envelope(digest.hex(), text.encode(), 5), "greet", digest


@pytest.fixture
def added(raw):
    """The payloads in the stream, and the ids."""

    async def look() -> tuple[list[str], list[str]]:
        jobs = [decode_envelope(one[b"d"]) for _, one in await raw.entries(raw.keys.stream)]
        return [one.payload.decode() for one in jobs], [one.id for one in jobs]

    return look


async def test_rows_are_added_in_order_with_ids_from_their_contents(add, added):
    assert await add("a", "b") == b"11"

    payloads, ids = await added()
    assert payloads == ["a", "b"]
    assert ids == [job(text)[2].hex() for text in "ab"]


async def test_an_attempt_that_is_run_again_adds_what_is_missing_in_any_order(add, added):
    await add("a", "b", "b", attempt=1)

    assert await add("b", "c", "a", "b", attempt=2) == b"0100"
    assert sorted((await added())[0]) == ["a", "b", "b", "c"]


async def test_equal_rows_are_jobs_with_ids_of_their_own(add, added):
    assert await add("a", "a", "a") == b"111"

    base = job("a")[2].hex()
    assert await added() == (["a"] * 3, [base, f"{base}-1", f"{base}-2"])


async def test_equal_rows_of_two_partitions_are_both_added(add, added):
    assert await add("a", "a", task=0, attempt=1) == b"11"
    assert await add("a", "a", task=1, attempt=2) == b"11"

    assert await add("a", "a", task=1, attempt=3) == b"00"
    assert len(set((await added())[1])) == 4


async def test_two_attempts_side_by_side_add_each_row_once(add, added):
    marks = [
        await add("a", "b", attempt=1),
        await add("a", attempt=2),
        await add("b", "b", "c", attempt=2),
        await add("b", "c", attempt=1),
    ]

    assert marks == [b"11", b"0", b"011", b"00"]
    assert sorted((await added())[0]) == ["a", "b", "b", "c"]


async def test_a_later_instance_of_the_run_finds_what_the_former_added(add, added):
    await add("a", "a", "b", task=0, attempt=1)
    await add("a", task=1, attempt=2)

    # The same rows, shared out to other partitions: four a, of which three are there.
    marks = [
        await add("a", instance="i2", task=5, attempt=1),
        await add("b", "a", "a", "a", instance="i2", task=6, attempt=2),
    ]

    assert marks == [b"0", b"0001"]
    assert sorted((await added())[0]) == ["a", "a", "a", "a", "b"]
    assert len(set((await added())[1])) == 5


async def test_a_resend_answers_what_the_first_send_did(add, added):
    first = await add("a", "a", token="same")

    assert await add("a", "a", token="same") == first == b"11"
    assert (await added())[0] == ["a", "a"]


async def test_rows_that_wait_are_delayed_jobs_that_can_be_found(add, raw):
    assert await add("a", "a", "b", waits=[60_000, 60_000, 0]) == b"111"

    members = await raw("ZRANGE", raw.keys.delayed, 0, -1, "WITHSCORES")
    ids = {decode_envelope(member[4 + 5 :]).id for member in members[::2]}
    assert {member[: 4 + 5] for member in members[::2]} == {struct.pack("<I", 5) + b"greet"}
    assert ids == {name.decode() for name in await raw("HKEYS", raw.keys.dix)}
    assert await raw("XLEN", raw.keys.stream) == 1
    assert set(await raw("HVALS", raw.keys.dix)) == set(members[1::2])


async def test_rows_that_do_not_fit_are_not_added(add, snapshot):
    await add("a", "b")
    before = await snapshot()

    assert await add("b", "c", cap=2) == b"full"

    assert await snapshot() == before
    assert await add("a", "b", attempt=1, cap=2) == b"00"


async def test_rows_that_wait_need_no_room(add, raw):
    assert await add("a", "b", "c", cap=1, waits=[60_000, 0, 60_000]) == b"111"
    assert await add("d", "e", cap=1, waits=[60_000, 0]) == b"full"


async def test_what_is_known_of_rows_is_kept_for_its_time(add, raw):
    await add(*[f"row {at}" for at in range(200)])

    used = [key for key in bucket_keys(raw.keys, "r") if await raw("EXISTS", key)]
    left_ms = [await raw("PTTL", key) for key in used]
    assert len(used) > 32
    assert all(0 < ms <= KEEP_MS for ms in left_ms)


async def test_a_key_of_the_wrong_type_leaves_nothing(add, raw, snapshot):
    await raw("SET", raw.keys.delayed, "no set")
    before = await snapshot()

    with pytest.raises(StoreError):
        await add("a", waits=[5])

    assert await snapshot() == before
