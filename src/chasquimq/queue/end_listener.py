"""Listens for the ends of jobs while somebody waits for results, and shortly after."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable

from chasquimq.errors import ServerRefused, StoreError
from chasquimq.model.dialing import dial_delay_ms
from chasquimq.model.log import get_logger
from chasquimq.model.pace import Pace
from chasquimq.store.end_tail import EndTail

logger = get_logger(__name__)
# Who waits again this soon finds the tail still running.
_LINGER_S = 1.0


class EndListener:
    """One tail of the events, from the first who waits until shortly after the last.

    Where events are off it hears nothing, and where they may not be read it gives up: the poll
    does without it.
    """

    def __init__(
        self,
        new_tail: Callable[[], EndTail],
        ended: Callable[[Iterable[str]], None],
        settled: Callable[[], None],
    ) -> None:
        self._new_tail = new_tail
        self._ended = ended
        self._settled = settled
        self._following: asyncio.Task[None] | None = None
        self._stopping: asyncio.TimerHandle | None = None
        self._is_refused = False
        self._failures = 0
        self._again_at_s = float("-inf")
        self._pace = Pace()

    def start(self) -> None:
        """Listen from now on, if nobody does."""
        loop = asyncio.get_running_loop()
        if self._stopping is not None:
            self._stopping.cancel()
            self._stopping = None
        if self._following is None and not self._is_refused and loop.time() >= self._again_at_s:
            self._following = loop.create_task(self._follow(), name="chasqui-result-events")
            self._following.add_done_callback(self._left_off)

    def stop_soon(self) -> None:
        """Nobody waits any more; somebody may do so again in a moment."""
        if self._following is not None and self._stopping is None:
            loop = asyncio.get_running_loop()
            self._stopping = loop.call_later(_LINGER_S, self._stop)

    async def close(self) -> None:
        following = self._following
        self._stop()
        if following is not None:
            await asyncio.wait([following], timeout=1)

    def _stop(self) -> None:
        if self._stopping is not None:
            self._stopping.cancel()
        if self._following is not None:
            self._following.cancel()
        self._following = self._stopping = None

    async def _follow(self) -> None:
        tail = self._new_tail()
        try:
            while True:
                await self._hear(tail)
        except ServerRefused as error:
            self._is_refused = True
            logger.debug("events may not be read, results are polled for: %s", error)
        finally:
            await tail.close()

    async def _hear(self, tail: EndTail) -> None:
        try:
            if tail.is_settled:
                self._ended(await tail.read_ended())
                self._failures = 0
                return
            await tail.settle()
            if tail.is_settled:
                # What ended before it listened is told by nobody.
                self._settled()
        except ServerRefused:
            raise
        except StoreError:
            await asyncio.sleep(self._next_pause_s())

    def _left_off(self, task: asyncio.Task[None]) -> None:
        if self._following is task:
            self._following = None
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        self._again_at_s = asyncio.get_running_loop().time() + self._next_pause_s()
        if self._pace.allows():
            message = "the events of a queue are not followed for a while, results are polled for"
            logger.error(message, exc_info=error)

    def _next_pause_s(self) -> float:
        """A link that was never open does not pace itself, and each new tail dials anew."""
        self._failures += 1
        return dial_delay_ms(self._failures, random.uniform) / 1000
