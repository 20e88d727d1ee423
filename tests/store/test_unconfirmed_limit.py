"""The limit on how many jobs are unconfirmed at once."""

from __future__ import annotations

import asyncio

import pytest

from chasquimq.store.producer.sender import UnconfirmedJobs


@pytest.fixture
def limit() -> UnconfirmedJobs:
    return UnconfirmedJobs(10)


async def entering(limit: UnconfirmedJobs, count: int) -> asyncio.Task:
    """Somebody on the way in, as far as they get at once."""
    task = asyncio.ensure_future(limit.enter(count))
    await asyncio.sleep(0)
    return task


async def test_who_fits_enters_at_once(limit):
    assert [limit.try_enter(count) for count in (4, 6, 1)] == [True, True, False]


async def test_who_does_not_fit_waits_until_there_is_room(limit):
    limit.try_enter(10)
    waiting = await entering(limit, 3)
    limit.leave(2)
    await asyncio.sleep(0)
    assert not waiting.done()

    limit.leave(1)

    await asyncio.wait_for(waiting, 5)
    assert not limit.try_enter(1)


async def test_everyone_who_fits_enters_when_room_is_made(limit):
    limit.try_enter(10)
    waiting = [await entering(limit, 2) for _ in range(3)]

    limit.leave(10)

    await asyncio.wait_for(asyncio.gather(*waiting), 5)
    assert limit.try_enter(4)
    assert not limit.try_enter(1)


async def test_more_than_the_limit_holds_enters_alone(limit):
    assert limit.try_enter(50)
    waiting = await entering(limit, 1)
    assert not waiting.done()

    limit.leave(50)

    await asyncio.wait_for(waiting, 5)


async def test_who_gives_up_waiting_takes_no_room(limit):
    limit.try_enter(10)
    quitter = await entering(limit, 5)

    quitter.cancel()
    limit.leave(10)
    await asyncio.wait([quitter])

    assert limit.try_enter(10)
