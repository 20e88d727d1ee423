"""Handlers that take many jobs at once: each job waits for its place, and has its own outcome."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, NamedTuple, cast

from chasquimq.errors import ChasquiError, SettingsError
from chasquimq.job import DeliveredJob, Job
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


class BatchAnswer(ChasquiError):
    """Return None, or a list with one outcome for each job; an error in it fails that job."""


def checked_batch(batch: Any, concurrency: int) -> Batch | None:
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
    return found


class Batcher:
    """Gathers jobs and calls the handler with many; stands in for a handler of one."""

    def __init__(self, call: Call, batch: Batch, *, is_unstoppable: bool = False) -> None:
        self._call = call
        self._batch = batch
        self._is_unstoppable = is_unstoppable
        self._places: list[_Place] = []
        self._timer: asyncio.TimerHandle | None = None
        self._running: set[asyncio.Task[None]] = set()
        # Not of the job that happened to fill a batch.
        self._context = contextvars.copy_context()

    async def __call__(self, job: DeliveredJob) -> Any:
        """Wait until the batch of this job has run; what it returned or raised for this one."""
        # What cannot be decoded fails alone.
        _ = job.data
        job.delivery.is_unstoppable = self._is_unstoppable
        loop = asyncio.get_running_loop()
        place = _Place(job, loop.create_future())
        self._places.append(place)
        if len(self._places) >= self._batch.size:
            self._send()
        elif len(self._places) == 1:
            self._timer = loop.call_later(self._batch.wait_ms / 1000, self._send)
        return await place.outcome

    def _send(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        places = [place for place in self._places if not place.outcome.done()]
        self._places = []
        if not places:
            return
        run = _run(self._call, places)
        task = asyncio.get_running_loop().create_task(run, context=self._context.copy())
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        _cancel_when_unwanted(task, places)


class _Place(NamedTuple):
    job: Job
    outcome: asyncio.Future[Any]


async def _run(call: Call, places: Sequence[_Place]) -> None:
    try:
        outcomes = _outcomes_of(await call([place.job for place in places]), len(places))
    except asyncio.CancelledError:
        for place in places:
            place.outcome.cancel()
        return
    except Exception as error:  # noqa: BLE001 - a user's handler may raise anything
        outcomes = [error] * len(places)
    for place, outcome in zip(places, outcomes, strict=True):
        _settle(place.outcome, outcome)


def _outcomes_of(answer: object, count: int) -> Sequence[Any]:
    if answer is None:
        return [None] * count
    if hasattr(answer, "to_pylist"):
        answer = cast("Any", answer).to_pylist()
    if not isinstance(answer, list | tuple):
        found = f"found {type(answer).__name__}"
    elif len(cast("Sequence[Any]", answer)) != count:
        found = f"found {len(cast('Sequence[Any]', answer))}"
    else:
        return cast("Sequence[Any]", answer)
    raise BatchAnswer(f"a batch of {count} must return None or a list of {count} outcomes, {found}")


def _settle(place: asyncio.Future[Any], outcome: Any) -> None:
    if place.done():
        return
    if not isinstance(outcome, BaseException):
        place.set_result(outcome)
    elif isinstance(outcome, StopIteration):
        place.set_exception(RuntimeError(f"a job must not raise {outcome!r}"))
    else:
        place.set_exception(outcome)


def _cancel_when_unwanted(task: asyncio.Task[None], places: Sequence[_Place]) -> None:
    """Nobody waits for a batch whose jobs were all given up: timed out, or taken away."""
    waiting = len(places)

    def left(_: asyncio.Future[Any]) -> None:
        nonlocal waiting
        waiting -= 1
        if waiting == 0:
            task.cancel()

    for place in places:
        place.outcome.add_done_callback(left)
