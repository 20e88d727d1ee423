"""Waits for the ends of jobs, and reads what workers with `store_results` kept of them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from numbers import Real
from typing import Any, NamedTuple

from chasquimq.errors import JobFailed, ResultExpired, ServerRefused, SettingsError, StoreError
from chasquimq.model.log import LogThrottle, get_logger
from chasquimq.store.event_reader import EndReader
from chasquimq.store.net.connect import dial_delay_ms
from chasquimq.store.results import Leftovers, ResultStore
from chasquimq.wire.keys import check_job_id
from chasquimq.wire.outcome import COMPLETED, DEAD

logger = get_logger(__name__)
POLL_S_MAX = 0.25
# However often a caller wants to look: events come sooner than this would.
POLL_S_MIN = 0.02
# An answer may take this long before it counts as missing.
_ANSWER_S = 0.5
# Who waits again this soon finds the events still being read.
_LINGER_S = 1.0


async def wait_for_value(watch: ResultWatch, job_id: str, timeout_s: float, poll_s: float) -> Any:
    """What the handler of a job returned, as soon as it has ended.

    Raises:
        JobFailed, ResultExpired, TimeoutError: as `Queue.wait_for_result` says.
    """
    _check_positive("timeout", timeout_s)
    _check_positive("poll_interval", poll_s)
    waiter = watch.wait(check_job_id(job_id), min(poll_s, POLL_S_MAX))
    try:
        async with asyncio.timeout(timeout_s):
            found = await waiter
    except TimeoutError:
        raise _not_seen(job_id, timeout_s, watch.error_text) from None
    return _value(job_id, found)


def _not_seen(job_id: str, timeout_s: float, error_text: str) -> TimeoutError:
    hint = "does its worker run with store_results=True?"
    if error_text:
        hint = f"the server could not be asked: {error_text.rstrip('.')}; is it running?"
    return TimeoutError(
        f"job {job_id!r} must end within {timeout_s:g} s and was not seen to; {hint}"
    )


def _value(job_id: str, found: Leftovers) -> Any:
    outcome = found.outcome
    if outcome is not None and outcome.status == DEAD:
        raise JobFailed(job_id, outcome.reason, outcome.error)
    is_expired = outcome is not None and outcome.status == COMPLETED and outcome.has_result
    if is_expired and found.result is None:
        raise ResultExpired(
            f"the result of job {job_id!r} must be read before it expires and is gone; "
            "wait sooner, or raise result_ttl_ms"
        )
    return found.value()


def _check_positive(name: str, value: float) -> None:
    if not isinstance(value, Real) or not value > 0:
        raise SettingsError(name, value, "a number of seconds above 0")


class _Wait(NamedTuple):
    """One caller that waits, and how often it wants to look."""

    future: asyncio.Future[Leftovers]
    poll_s: float


class ResultWatch:
    """Looks for the ends of jobs while callers wait for them."""

    def __init__(self, store: ResultStore, new_reader: Callable[[], EndReader]) -> None:
        self._store = store
        self._waiting: dict[str, set[_Wait]] = {}
        self._due: set[str] = set()
        self._wake = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None
        self._poll_at_s = 0.0
        self._failures = 0
        self._error: StoreError | None = None
        # Since when the server owes an answer.
        self._asked_s: float | None = None
        self._ends = EndListener(store.queue, new_reader, self._ended, self._poll_now)

    @property
    def waiting_count(self) -> int:
        return sum(map(len, self._waiting.values()))

    @property
    def error_text(self) -> str:
        """Why the server cannot be asked right now; empty: it can."""
        if self._error is not None:
            return str(self._error)
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
        """Raise this error for every caller that waits now."""
        waiting, self._waiting = self._waiting, {}
        for waits in waiting.values():
            for wait in waits:
                if not wait.future.done():
                    wait.future.set_exception(error)

    async def close(self) -> None:
        """End what runs for callers that waited."""
        if self._serving is not None:
            self._serving.cancel()
        await self._ends.close()

    async def _serve(self) -> None:
        self._asked_s = self._error = None
        self._poll_at_s = _now_s() + self._poll_s()
        try:
            await self._look_and_sleep()
        except Exception as error:  # noqa: BLE001 - no other code reports it to callers that wait
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
            self._error = error
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
        self._asked_s = self._error = None
        self._failures = 0
        return found

    async def _pause(self) -> None:
        # A connection that was open before makes its own pauses between dials.
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
        """As often as the most hurried caller that waits now wants it."""
        waits = [wait.poll_s for waits in self._waiting.values() for wait in waits]
        return min(waits, default=POLL_S_MAX)

    def _forget(self, job_id: str, wait: _Wait) -> None:
        waits = self._waiting.get(job_id)
        if waits is None:
            return
        waits.discard(wait)
        if not waits:
            del self._waiting[job_id]


class EndListener:
    """Reads the events of a queue, from the first caller that waits until shortly after the last.

    Where events are off it gets none, and where they may not be read it gives up: the poll does
    without it.
    """

    def __init__(
        self,
        queue: str,
        new_reader: Callable[[], EndReader],
        ended: Callable[[Iterable[str]], None],
        settled: Callable[[], None],
    ) -> None:
        self._queue = queue
        self._new_reader = new_reader
        self._ended = ended
        self._settled = settled
        self._following: asyncio.Task[None] | None = None
        self._stopping: asyncio.TimerHandle | None = None
        self._is_refused = False
        self._failures = 0
        self._again_at_s = float("-inf")
        self._throttle = LogThrottle()

    def start(self) -> None:
        """Read events from now on, if that is not under way."""
        loop = asyncio.get_running_loop()
        if self._stopping is not None:
            self._stopping.cancel()
            self._stopping = None
        if self._following is None and not self._is_refused and loop.time() >= self._again_at_s:
            self._following = loop.create_task(self._follow(), name="chasqui-result-events")
            self._following.add_done_callback(self._left_off)

    def stop_soon(self) -> None:
        """Stop unless a caller waits again in a moment."""
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
        reader = self._new_reader()
        try:
            while True:
                await self._read(reader)
        except ServerRefused as error:
            self._is_refused = True
            logger.debug(
                "events of queue %s may not be read, results are polled for: %s",
                self._queue, error,
            )  # fmt: skip
        finally:
            await reader.close()

    async def _read(self, reader: EndReader) -> None:
        try:
            if reader.is_settled:
                self._ended(await reader.read_ended())
                self._failures = 0
                return
            await reader.settle()
            if reader.is_settled:
                # No event comes for what ended before it listened.
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
        if self._throttle.allows():
            logger.error(
                "the events of queue %s are not followed for a while, results are polled for",
                self._queue, exc_info=error,
            )  # fmt: skip

    def _next_pause_s(self) -> float:
        """A connection that was never open has no pauses of its own, and each new reader dials again."""
        self._failures += 1
        return dial_delay_ms(self._failures, random.uniform) / 1000


def _now_s() -> float:
    return asyncio.get_running_loop().time()
