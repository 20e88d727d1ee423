"""lead and release_lock: one leader at a time, and nobody frees another's lock."""

from __future__ import annotations

import pytest

from chasquimq.errors import StoreError

NOTHING = -1


@pytest.fixture
def lock(raw) -> str:
    return raw.keys.promoter_lock


@pytest.fixture
def lead(run, raw, lock):
    """Try to lead promotion."""

    async def try_it(holder: str, ttl_s: int) -> list[int]:
        return await run("lead", [lock, raw.keys.delayed], holder, ttl_s)

    return try_it


async def test_a_free_lock_is_taken_for_its_time(lead, raw, lock):
    mark, _, *waiting = await lead("me", 5)

    assert (mark, waiting) == (1, [NOTHING, 0])
    assert await raw("GET", lock) == b"me"
    assert 4_000 <= await raw("PTTL", lock) <= 5_000


async def test_the_holder_renews_its_lock(lead, raw, lock):
    await lead("me", 5)

    assert (await lead("me", 50))[0] == 1
    assert await raw("TTL", lock) > 40


async def test_another_holder_keeps_its_lock_and_its_time(lead, raw, lock):
    await lead("other", 5)

    mark, free_in_ms = await lead("me", 500)

    assert mark == 0
    assert 4_000 <= free_in_ms <= 5_000
    assert await raw("GET", lock) == b"other"
    assert await raw("TTL", lock) <= 5


async def test_a_leader_learns_when_the_first_is_due_by_the_servers_clock(lead, raw):
    await raw("ZADD", raw.keys.delayed, 7_000, "later", 5_000, "sooner")

    mark, now_ms, due_ms, depth = await lead("me", 5)

    seconds, _ = await raw("TIME")
    assert (mark, due_ms, depth) == (1, 5_000, 2)
    assert abs(int(seconds) * 1000 - now_ms) <= 2_000


@pytest.mark.parametrize(("score", "due_ms"), [("-inf", 0), ("+inf", 2**53)])
async def test_a_time_that_is_no_number_is_told_as_one(lead, raw, score, due_ms):
    await raw("ZADD", raw.keys.delayed, score, "odd")

    assert (await lead("me", 5))[2] == due_ms


async def test_a_set_of_the_wrong_type_makes_no_leader(lead, raw, snapshot):
    await raw("SET", raw.keys.delayed, "no sorted set")
    before = await snapshot()

    with pytest.raises(StoreError, match="WRONGTYPE"):
        await lead("me", 5)

    assert await snapshot() == before


async def test_the_holder_releases_its_lock(run, lead, raw, lock):
    await lead("me", 5)

    assert await run("release_lock", [lock], "me") == 1
    assert await raw("EXISTS", lock) == 0


async def test_a_release_calls_a_worker_that_has_nothing_to_do(run, lead, raw, lock):
    await raw("XGROUP", "CREATE", raw.keys.wake, "default", "0", "MKSTREAM")
    await lead("me", 5)

    assert await run("release_lock", [lock], "me", raw.keys.wake) == 1
    assert await raw("XLEN", raw.keys.wake) == 1


async def test_a_release_that_calls_nobody_makes_no_key(run, lead, raw, lock, snapshot):
    await lead("me", 5)

    await run("release_lock", [lock], "me", raw.keys.wake)

    assert await snapshot() == {}


async def test_a_late_release_frees_nobody_elses_lock(run, lead, raw, lock):
    await lead("other", 5)

    assert await run("release_lock", [lock], "me") == 0
    assert await raw("GET", lock) == b"other"


async def test_releasing_a_lock_that_is_gone_answers_that_it_was_not_ours(run, lock):
    assert await run("release_lock", [lock], "me") == 0


@pytest.mark.parametrize(("name", "args"), [("lead", ("me", 5)), ("release_lock", ("me",))])
async def test_a_lock_of_the_wrong_type_is_left_as_it_is(run, raw, lock, snapshot, name, args):
    await raw("RPUSH", lock, "not a lock")
    before = await snapshot()

    with pytest.raises(StoreError, match="WRONGTYPE"):
        await run(name, [lock, raw.keys.delayed], *args)

    assert await snapshot() == before
