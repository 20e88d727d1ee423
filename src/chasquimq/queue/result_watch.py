"""Serves everyone who waits for a result: woken by events, backed by one poll for all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from chasquimq.errors import ServerRefused, StoreError
from chasquimq.store.end_tail import EndTail
from chasquimq.store.results import Leftovers, ResultStore

logger = logging.getLogger(__name__)
POLL_S_MAX = 0.25
# Who waits again this soon finds the tail still running.
_LINGER_S = 1.0
_PAUSE_S = 0.2


class ResultWatch:
    """Those who wait, and what is looked at for them."""

    def __init__(self, store: ResultStore, new_tail: Callable[[], EndTail]) -> None:
        self._store = store
        self._waiting: dict[str, list[asyncio.Future[Leftovers]]] = {}
        self._due: set[str] = set()
        self._wake = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None
        self._poll_s = POLL_S_MAX
        self._poll_at_s = 0.0
        self._ends = EndListener(new_tail, self._ended, self._poll_now)

    def wait(self, job_id: str, poll_s: float) -> asyncio.Future[Leftovers]:
        """What is left of the job, as soon as it has ended."""
        future: asyncio.Future[Leftovers] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(job_id, []).append(future)
        self._look_soon([job_id])
        if self._serving is not None and not self._serving.done():
            self._poll_s = min(self._poll_s, poll_s)
            return future
        self._poll_s = poll_s
        self._serving = asyncio.create_task(self._serve(), name="chasqui-results")
        return future

    def fail(self, error: StoreError) -> None:
        """Everyone who waits now hears this error."""
        waiting, self._waiting = self._waiting, {}
        for futures in waiting.values():
            for future in futures:
                if not future.done():
                    future.set_exception(error)

    async def close(self) -> None:
        """End what runs for those who waited."""
        if self._serving is not None:
            self._serving.cancel()
        await self._ends.close()

    async def _serve(self) -> None:
        try:
            await self._look_and_sleep()
        finally:
            self._ends.stop_soon()

    async def _look_and_sleep(self) -> None:
        loop = asyncio.get_running_loop()
        self._poll_at_s = loop.time() + self._poll_s
        while self._waiting:
            if loop.time() >= self._poll_at_s:
                self._forget_the_gone()
                self._due.update(self._waiting)
                self._poll_at_s = loop.time() + self._poll_s
            try:
                await self._look()
            except StoreError as error:
                if not self._store.may_heal(error):
                    self.fail(error)
                    return
            if self._waiting:
                self._ends.start()
                await self._sleep(self._poll_at_s - loop.time())

    async def _look(self) -> None:
        job_ids = [job_id for job_id in self._due if job_id in self._waiting]
        self._due.clear()
        self._wake.clear()
        if not job_ids:
            return
        for job_id, found in zip(job_ids, await self._store.leftovers(job_ids), strict=True):
            if found.outcome is None and found.result is None:
                continue
            for future in self._waiting.pop(job_id, []):
                if not future.done():
                    future.set_result(found)

    async def _sleep(self, at_most_s: float) -> None:
        try:
            async with asyncio.timeout(at_most_s):
                await self._wake.wait()
        except TimeoutError:
            return

    def _ended(self, job_ids: Iterable[str]) -> None:
        self._look_soon([job_id for job_id in job_ids if job_id in self._waiting])

    def _poll_now(self) -> None:
        self._poll_at_s = asyncio.get_running_loop().time()
        self._wake.set()

    def _look_soon(self, job_ids: Iterable[str]) -> None:
        self._due.update(job_ids)
        if self._due:
            self._wake.set()

    def _forget_the_gone(self) -> None:
        for job_id, futures in list(self._waiting.items()):
            if all(future.done() for future in futures):
                del self._waiting[job_id]


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

    def start(self) -> None:
        """Listen from now on, if nobody does."""
        if self._stopping is not None:
            self._stopping.cancel()
            self._stopping = None
        if self._following is None and not self._is_refused:
            self._following = asyncio.create_task(self._follow(), name="chasqui-result-events")

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
                return
            await tail.settle()
            # What ended before it listened is told by nobody.
            self._settled()
        except ServerRefused:
            raise
        except StoreError:
            await asyncio.sleep(_PAUSE_S)
