"""Loops that fail are started again, and the log says so without filling up."""

from __future__ import annotations

import asyncio
import logging
import re

import pytest

from chasquimq.engine.supervisor import Supervisor
from chasquimq.errors import ConnectionLost, StoreError
from support.waiting import eventually

UP_S = 1.0


class Flapping:
    """Runs for a while, fails, and does it again."""

    name = "flapping"

    def __init__(self, error: BaseException, run_s: float = UP_S + 0.05) -> None:
        self._error = error
        self._run_s = run_s
        self.runs = 0

    async def run(self) -> None:
        self.runs += 1
        await asyncio.sleep(self._run_s)
        raise self._error

    def stop(self) -> None:
        raise AssertionError("nobody stops it")


@pytest.fixture
async def keep():
    """Let a supervisor keep a loop until the test ends."""
    kept = []

    def keep(loop) -> Supervisor:
        supervisor = Supervisor("worker w-1 of queue mails")
        kept.append(asyncio.create_task(supervisor.keep(loop)))
        return supervisor

    yield keep
    for task in kept:
        task.cancel()
    await asyncio.gather(*kept, return_exceptions=True)


def told(caplog) -> list[tuple[str, str]]:
    return [
        (one.levelname, one.getMessage()) for one in caplog.records if hasattr(one, "chasqui_loop")
    ]


async def test_a_loop_that_fails_now_and_then_is_told_once(keep, caplog):
    loop = Flapping(StoreError("WRONGTYPE no stream"))
    supervisor = keep(loop)

    await eventually(lambda: loop.runs >= 4)

    assert told(caplog) == [
        (
            "WARNING",
            "loop flapping of worker w-1 of queue mails had failed and is up again: WRONGTYPE no stream",
        )
    ]
    (line,) = [one for one in caplog.records if hasattr(one, "chasqui_loop")]
    assert (line.chasqui_loop, line.chasqui_error) == ("flapping", "WRONGTYPE no stream")
    assert supervisor.loops_down == {}


async def test_a_connection_that_broke_is_told_by_itself_and_not_by_every_loop(keep, caplog):
    loop = Flapping(ConnectionLost("it broke"))
    keep(loop)

    await eventually(lambda: loop.runs >= 3)

    assert told(caplog) == []


async def test_a_bug_in_a_loop_is_told_at_once_and_not_at_every_turn(keep, caplog):
    loop = Flapping(ValueError("a bug"), run_s=0)
    keep(loop)

    with caplog.at_level(logging.WARNING, "chasquimq"):
        await eventually(lambda: loop.runs >= 5)

    assert told(caplog) == [
        ("ERROR", "loop flapping of worker w-1 of queue mails failed and is started again")
    ]


class GivesUp(BaseException):
    """What no `except Exception` stops."""


@pytest.mark.parametrize("error", [asyncio.CancelledError(), GivesUp("for good")], ids=repr)
async def test_a_loop_that_ends_by_a_cancel_nobody_asked_for_is_started_again(keep, caplog, error):
    loop = Flapping(error, run_s=0)
    supervisor = keep(loop)

    await eventually(lambda: supervisor.loops_down, within_s=8)

    assert loop.runs >= 5
    assert supervisor.loops_down == {"flapping": str(error) or "CancelledError"}
    assert told(caplog)[0] == (
        "ERROR",
        "loop flapping of worker w-1 of queue mails failed and is started again",
    )


async def test_a_loop_that_is_cancelled_ends(caplog):
    loop = Flapping(ValueError("never"), run_s=60)
    kept = asyncio.create_task(Supervisor().keep(loop))
    await eventually(lambda: loop.runs)

    kept.cancel()

    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(kept, 5)
    assert told(caplog) == []


async def test_a_loop_that_was_down_says_when_it_is_up(keep, caplog):
    loop = Flapping(StoreError("READONLY a replica"), run_s=0)
    supervisor = keep(loop)
    with caplog.at_level(logging.INFO, "chasquimq"):
        await eventually(lambda: supervisor.loops_down, within_s=8)
        await eventually(lambda: told(caplog))

        loop._run_s = 60
        await eventually(lambda: not supervisor.loops_down, within_s=4)

    (level, down), up = told(caplog)
    assert (level, up) == (
        "ERROR",
        ("INFO", "loop flapping of worker w-1 of queue mails is up again"),
    )
    assert re.fullmatch(
        r"loop flapping of worker w-1 of queue mails has been failing for [56] s: READONLY a replica",
        down,
    )
