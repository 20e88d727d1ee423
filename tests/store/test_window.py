"""The gate that bounds how much is unconfirmed at once."""

from __future__ import annotations

import asyncio

import pytest

from chasquimq.store.producer.unconfirmed import Window


@pytest.fixture
def window() -> Window:
    return Window(10)


async def entering(window: Window, count: int) -> asyncio.Task:
    """Somebody on the way in, as far as they get at once."""
    task = asyncio.ensure_future(window.enter(count))
    await asyncio.sleep(0)
    return task


async def test_who_fits_enters_at_once(window):
    assert [window.try_enter(count) for count in (4, 6, 1)] == [True, True, False]


async def test_who_does_not_fit_waits_until_there_is_room(window):
    window.try_enter(10)
    waiting = await entering(window, 3)
    window.leave(2)
    await asyncio.sleep(0)
    assert not waiting.done()

    window.leave(1)

    await asyncio.wait_for(waiting, 5)
    assert not window.try_enter(1)


async def test_everyone_who_fits_enters_when_room_is_made(window):
    window.try_enter(10)
    waiting = [await entering(window, 2) for _ in range(3)]

    window.leave(10)

    await asyncio.wait_for(asyncio.gather(*waiting), 5)
    assert window.try_enter(4)
    assert not window.try_enter(1)


async def test_more_than_the_window_holds_enters_alone(window):
    assert window.try_enter(50)
    waiting = await entering(window, 1)
    assert not waiting.done()

    window.leave(50)

    await asyncio.wait_for(waiting, 5)


async def test_who_gives_up_waiting_takes_no_room(window):
    window.try_enter(10)
    quitter = await entering(window, 5)

    quitter.cancel()
    window.leave(10)
    await asyncio.wait([quitter])

    assert window.try_enter(10)
