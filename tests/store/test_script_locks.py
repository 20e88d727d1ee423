"""acquire_lock and release_lock: one leader at a time, and nobody frees another's lock."""

from __future__ import annotations

import pytest

from chasquimq.errors import StoreError


@pytest.fixture
def lock(raw) -> str:
    return raw.keys.promoter_lock


async def test_a_free_lock_is_taken_for_its_time(run, raw, lock):
    assert await run("acquire_lock", [lock], "me", 5) == 1
    assert await raw("GET", lock) == b"me"
    assert 4_000 <= await raw("PTTL", lock) <= 5_000


async def test_the_holder_renews_its_lock(run, raw, lock):
    await run("acquire_lock", [lock], "me", 5)

    assert await run("acquire_lock", [lock], "me", 50) == 1
    assert await raw("TTL", lock) > 40


async def test_another_holder_keeps_its_lock_and_its_time(run, raw, lock):
    await run("acquire_lock", [lock], "other", 5)

    assert await run("acquire_lock", [lock], "me", 500) == 0
    assert await raw("GET", lock) == b"other"
    assert await raw("TTL", lock) <= 5


async def test_the_holder_releases_its_lock(run, raw, lock):
    await run("acquire_lock", [lock], "me", 5)

    assert await run("release_lock", [lock], "me") == 1
    assert await raw("EXISTS", lock) == 0


async def test_a_late_release_frees_nobody_elses_lock(run, raw, lock):
    await run("acquire_lock", [lock], "other", 5)

    assert await run("release_lock", [lock], "me") == 0
    assert await raw("GET", lock) == b"other"


async def test_releasing_a_lock_that_is_gone_answers_that_it_was_not_ours(run, lock):
    assert await run("release_lock", [lock], "me") == 0


@pytest.mark.parametrize(("name", "args"), [("acquire_lock", ("me", 5)), ("release_lock", ("me",))])
async def test_a_lock_of_the_wrong_type_is_left_as_it_is(run, raw, lock, snapshot, name, args):
    await raw("RPUSH", lock, "not a lock")
    before = await snapshot()

    with pytest.raises(StoreError, match="WRONGTYPE"):
        await run(name, [lock], *args)

    assert await snapshot() == before
