"""Handlers that take many jobs at once: each job waits for its place, and has its own outcome."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, NamedTuple, cast

from chasquimq.errors import BatchAnswer, SettingsError
from chasquimq.job import DeliveredJob
from chasquimq.model.options import whole_number

Form = Literal["list", "arrow"]
Call = Callable[[Any], Awaitable[Any]]
_WAIT_MS_MAX = 60_000


class Batch(NamedTuple):
    """At most `size` jobs together; the first of them waits `wait_ms` for the others.

    With the form "arrow" a handler gets a `pyarrow.Table` instead of a list.
    """

    size: int
    wait_ms: int = 10
    form: Form = "list"


def checked_batch(batch: Any, concurrency: int, timeout_ms: int | None = None) -> Batch | None:
    """The batch that was asked for.

    Raises:
        SettingsError: it could never be full, or is none.
    """
    if batch is None:
        return None
    given = cast("tuple[Any, ...]", batch) if isinstance(batch, tuple) else ()
    if not 0 < len(given) <= len(Batch._fields):
        rule = "a pair such as (100, 50): jobs, and milliseconds"
        raise SettingsError("batch", cast("object", batch), rule)
    found = Batch(*given)
    whole_number("batch size", found.size, 1)
    whole_number("batch wait_ms", found.wait_ms, 0, _WAIT_MS_MAX)
    if found.form not in ("list", "arrow"):
        raise SettingsError("batch form", found.form, '"list" or "arrow"')
    if found.size > concurrency:
        hint = "jobs of a batch run at once; raise concurrency, or lower the size"
        raise SettingsError("batch size", found.size, f"at most {concurrency}", hint=hint)
    if timeout_ms is not None and found.wait_ms >= timeout_ms:
        hint = "a job that waits for others is on its time already"
        raise SettingsError("batch wait_ms", found.wait_ms, f"below {timeout_ms}", hint=hint)
    return found


class Batcher:
    """Gathers jobs and calls the handler with many; stands in for a handler of one."""

    def __init__(self, call: Call, batch: Batch, *, is_unstoppable: bool = False) -> None:
        self._call = call
        self._batch = batch
        self._is_unstoppable = is_unstoppable
        self._is_hurried = False
        self._gathering = _Group()
        self._timer: asyncio.TimerHandle | None = None
        # Not of the job that happened to fill a batch.
        self._context = contextvars.copy_context()

    async def __call__(self, job: DeliveredJob) -> Any:
        """Wait until the batch of this job has run; what it returned or raised for this one."""
        # What cannot be decoded fails alone.
        _ = job.data
        group, place = self._gathering, _Place(job, asyncio.get_running_loop().create_future())
        group.places.append(place)
        if self._is_hurried or len(group.places) >= self._batch.size:
            self._send()
        else:
            self._send_within(self._patience_s(job))
        try:
            return await place.outcome
        except asyncio.CancelledError:
            await group.leave(place)
            raise

    def hurry(self) -> None:
        """Nothing more will come: what waits for others goes now."""
        self._is_hurried = True
        self._send()

    def _patience_s(self, job: DeliveredJob) -> float:
        # A job's own time runs while it waits; half of it is for the handler.
        own_ms = job.delivery.timeout_ms(None)
        wait_ms = self._batch.wait_ms if own_ms is None else min(self._batch.wait_ms, own_ms / 2)
        return wait_ms / 1000

    def _send_within(self, wait_s: float) -> None:
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            if self._timer.when() <= loop.time() + wait_s:
                return
            self._timer.cancel()
        self._timer = loop.call_later(wait_s, self._send)

    def _send(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        group, self._gathering = self._gathering, _Group()
        if not group.places:
            return
        for place in group.places:
            place.job.delivery.is_unstoppable = self._is_unstoppable
        run = _run(self._call, group.places)
        context = self._context.copy()
        group.task = asyncio.get_running_loop().create_task(run, context=context)


class _Place(NamedTuple):
    job: DeliveredJob
    outcome: asyncio.Future[Any]


class _Group:
    """Jobs that run together, and the task that runs them once they are gathered."""

    def __init__(self) -> None:
        self.places: list[_Place] = []
        self.task: asyncio.Task[None] | None = None

    async def leave(self, place: _Place) -> None:
        """Give a place up; the last to leave ends the batch, and waits until it has ended."""
        if self.task is None:
            self.places.remove(place)
        elif all(one.outcome.done() for one in self.places):
            self.task.cancel()
            await asyncio.wait([self.task])


async def _run(call: Call, places: Sequence[_Place]) -> None:
    try:
        answer = await call([place.job for place in places])
        outcomes = outcomes_of(answer, len(places))
    except asyncio.CancelledError:
        for place in places:
            place.outcome.cancel()
    except BaseException as error:  # a user's handler may raise anything
        for place in places:
            _settle(place.outcome, error)
        if isinstance(error, KeyboardInterrupt):
            raise
    else:
        for place, outcome in zip(places, outcomes, strict=True):
            _settle(place.outcome, outcome)


def outcomes_of(answer: Any, count: int) -> Sequence[Any]:
    """One outcome for each job.

    Raises:
        BatchAnswer: there are more or fewer, or none that can be told apart.
    """
    if answer is None:
        return [None] * count
    for convert in ("to_pylist", "tolist"):
        if hasattr(answer, convert):
            answer = getattr(answer, convert)()
            break
    if not isinstance(answer, list | tuple):
        raise BatchAnswer(count, type(answer).__name__)
    found = cast("Sequence[Any]", answer)
    if len(found) != count:
        raise BatchAnswer(count, str(len(found)))
    return found


def _settle(place: asyncio.Future[Any], outcome: Any) -> None:
    if place.done():
        return
    if not isinstance(outcome, BaseException):
        place.set_result(outcome)
    elif isinstance(outcome, StopIteration):
        place.set_exception(RuntimeError(f"a job must not raise {outcome!r}"))
    else:
        place.set_exception(outcome)
