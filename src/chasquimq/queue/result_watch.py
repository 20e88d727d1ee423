"""Serves everyone who waits for a result: woken by events, backed by one poll for all."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from typing import NamedTuple

from chasquimq.errors import StoreError
from chasquimq.model.dialing import dial_delay_ms
from chasquimq.queue.end_listener import EndListener
from chasquimq.store.end_tail import EndTail
from chasquimq.store.results import Leftovers, ResultStore

POLL_S_MAX = 0.25
# However much of a hurry somebody is in: events tell sooner than this would.
POLL_S_MIN = 0.02
# An answer may take this long before anybody calls it missing.
_ANSWER_S = 0.5


class _Wait(NamedTuple):
    """One who waits, and how often it wants to look."""

    future: asyncio.Future[Leftovers]
    poll_s: float


class ResultWatch:
    """Those who wait, and what is looked at for them."""

    def __init__(self, store: ResultStore, new_tail: Callable[[], EndTail]) -> None:
        self._store = store
        self._waiting: dict[str, set[_Wait]] = {}
        self._due: set[str] = set()
        self._wake = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None
        self._poll_at_s = 0.0
        self._failures = 0
        self._trouble: StoreError | None = None
        # Since when the server owes an answer.
        self._asked_s: float | None = None
        self._ends = EndListener(new_tail, self._ended, self._poll_now)

    @property
    def waiting_count(self) -> int:
        return sum(map(len, self._waiting.values()))

    @property
    def trouble(self) -> str:
        """Why the server cannot be asked right now; empty: it can."""
        if self._trouble is not None:
            return str(self._trouble)
        is_late = self._asked_s is not None and _now_s() - self._asked_s > _ANSWER_S
        return "it does not answer" if is_late else ""

    def wait(self, job_id: str, poll_s: float) -> asyncio.Future[Leftovers]:
        """What is left of the job, as soon as it has ended."""
        future: asyncio.Future[Leftovers] = asyncio.get_running_loop().create_future()
        wait = _Wait(future, max(poll_s, POLL_S_MIN))
        self._waiting.setdefault(job_id, set()).add(wait)
        future.add_done_callback(lambda _: self._forget(job_id, wait))
        self._poll_at_s = min(self._poll_at_s, _now_s() + wait.poll_s)
        self._look_soon([job_id])
        if self._serving is None or self._serving.done():
            self._serving = asyncio.create_task(self._serve(), name="chasqui-results")
        return future

    def fail(self, error: Exception) -> None:
        """Everyone who waits now hears this error."""
        waiting, self._waiting = self._waiting, {}
        for waits in waiting.values():
            for wait in waits:
                if not wait.future.done():
                    wait.future.set_exception(error)

    async def close(self) -> None:
        """End what runs for those who waited."""
        if self._serving is not None:
            self._serving.cancel()
        await self._ends.close()

    async def _serve(self) -> None:
        self._asked_s = self._trouble = None
        self._poll_at_s = _now_s() + self._poll_s()
        try:
            await self._look_and_sleep()
        except Exception as error:  # noqa: BLE001 - nobody else would tell those who wait
            self.fail(error)
        finally:
            self._ends.stop_soon()

    async def _look_and_sleep(self) -> None:
        while self._waiting:
            if _now_s() >= self._poll_at_s:
                self._due.update(self._waiting)
                self._poll_at_s = _now_s() + self._poll_s()
            await self._try_to_look()
            if self._waiting:
                self._ends.start()
                await self._sleep(self._poll_at_s - _now_s())

    async def _try_to_look(self) -> None:
        try:
            await self._look()
        except StoreError as error:
            if not self._store.may_heal(error):
                raise
            self._trouble = error
            await self._pause()

    async def _look(self) -> None:
        job_ids = [job_id for job_id in self._due if job_id in self._waiting]
        self._due.clear()
        self._wake.clear()
        if not job_ids:
            return
        for job_id, found in zip(job_ids, await self._ask(job_ids), strict=True):
            if found.outcome is None and found.result is None:
                continue
            for wait in self._waiting.pop(job_id, ()):
                if not wait.future.done():
                    wait.future.set_result(found)

    async def _ask(self, job_ids: list[str]) -> list[Leftovers]:
        if self._asked_s is None:
            self._asked_s = _now_s()
        found = await self._store.leftovers(job_ids)
        self._asked_s = self._trouble = None
        self._failures = 0
        return found

    async def _pause(self) -> None:
        # A link that was open before paces its dials itself.
        if not self._store.was_reached:
            self._failures += 1
            await asyncio.sleep(dial_delay_ms(self._failures, random.uniform) / 1000)

    async def _sleep(self, at_most_s: float) -> None:
        try:
            async with asyncio.timeout(at_most_s):
                await self._wake.wait()
        except TimeoutError:
            return

    def _ended(self, job_ids: Iterable[str]) -> None:
        self._look_soon([job_id for job_id in job_ids if job_id in self._waiting])

    def _poll_now(self) -> None:
        self._poll_at_s = _now_s()
        self._wake.set()

    def _look_soon(self, job_ids: Iterable[str]) -> None:
        self._due.update(job_ids)
        if self._due:
            self._wake.set()

    def _poll_s(self) -> float:
        """As often as the most hurried of those who wait now wants it."""
        waits = [wait.poll_s for waits in self._waiting.values() for wait in waits]
        return min(waits, default=POLL_S_MAX)

    def _forget(self, job_id: str, wait: _Wait) -> None:
        waits = self._waiting.get(job_id)
        if waits is None:
            return
        waits.discard(wait)
        if not waits:
            del self._waiting[job_id]


def _now_s() -> float:
    return asyncio.get_running_loop().time()
