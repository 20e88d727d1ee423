"""Gathers jobs for handlers that take many at once; each job has an outcome of its own."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, cast

from chasquimq.errors import BatchAnswer, JobTimeout, NotSupportedError, SettingsError
from chasquimq.job import DeliveredJob
from chasquimq.model.job_options import whole_number

if TYPE_CHECKING:
    import pyarrow as pa

    from chasquimq.job import Job

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
    """Gathers jobs and calls the handler with many; stands in for a handler of one.

    A batch is one run: the first of its jobs whose time is over ends it for all of them, and no
    job leaves before the handler has ended. In a thread, which cannot be stopped, no time counts.
    """

    def __init__(
        self,
        call: Call,
        batch: Batch,
        *,
        timeout_ms: int | None = None,
        is_unstoppable: bool = False,
    ) -> None:
        """`timeout_ms` is what jobs have that name no time of their own."""
        self._call = call
        self._batch = batch
        self._timeout_ms = timeout_ms
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
        job.delivery.is_unstoppable = self._is_unstoppable
        place = _Place(job, asyncio.get_running_loop().create_future())
        group = self._join(place)
        try:
            return await place.outcome
        except asyncio.CancelledError:
            await group.leave(place, job.delivery.timeout_ms(self._timeout_ms))
            raise

    def hurry(self) -> None:
        """Nothing more will come: what waits for others goes now."""
        self._is_hurried = True
        self._send()

    def _join(self, place: _Place) -> _Group:
        group = self._gathering
        if place.job.redelivered:
            # It may have killed its process: it waits for no other job, and none shares its run.
            group = _Group()
        group.places.append(place)
        if group is not self._gathering:
            self._start(group)
        elif self._is_hurried or len(group.places) >= self._batch.size:
            self._send()
        else:
            self._send_within(self._patience_s(place.job))
        return group

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
        if group.places:
            self._start(group)

    def _start(self, group: _Group) -> None:
        run = _run(self._call, group)
        context = self._context.copy()
        group.task = asyncio.get_running_loop().create_task(run, context=context)
        # A task that is cancelled before its first step runs nothing, not even its own clean-up.
        group.task.add_done_callback(lambda _: group.give_up())


class _Place(NamedTuple):
    job: DeliveredJob
    outcome: asyncio.Future[Any]


class _Group:
    """Jobs that run together, and the task that runs them once they are gathered."""

    def __init__(self) -> None:
        self.places: list[_Place] = []
        self.task: asyncio.Task[None] | None = None
        self.is_ended = False
        # The limit that ended the run.
        self.timeout_ms: int | None = None

    async def leave(self, place: _Place, timeout_ms: int | None) -> None:
        """End the batch for everyone, and return when its handler has ended."""
        if self.task is None:
            self.places.remove(place)
            return
        if not self.is_ended:
            self.is_ended, self.timeout_ms = True, timeout_ms
            self.task.cancel()
        while not self.task.done():
            # A second cancel must wait, too: the jobs are still being worked on.
            with suppress(asyncio.CancelledError):
                await asyncio.wait([self.task])

    def give_up(self) -> None:
        """Fail every job that has no outcome yet; only a run that was cancelled leaves one."""
        for place in self.places:
            if self.timeout_ms is None:
                place.outcome.cancel()
            else:
                _settle(place.outcome, JobTimeout(self.timeout_ms))


async def _run(call: Call, group: _Group) -> None:
    places = group.places
    try:
        answer = await call([place.job for place in places])
        outcomes = outcomes_of(answer, len(places))
    except asyncio.CancelledError:
        group.give_up()
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
        BatchAnswer: there are more or fewer, or none that can be matched.
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


# What identifies a row; the data may have any other name.
JOB_ID: Final = "_job_id"
NAME: Final = "_name"
ATTEMPT: Final = "_attempt"
DATA: Final = "data"


def refuse_missing_arrow() -> None:
    """Say what to install before the first job is read."""
    if find_spec("pyarrow") is None:
        raise NotSupportedError(
            "batches as tables need pyarrow, not installed here; pip install pyarrow"
        )


def table_of(jobs: Sequence[Job]) -> pa.Table:
    """A row for each job: its id, name and attempt, and its data, by key where it has keys."""
    import pyarrow as pa

    rows = [_keyed(job.data) for job in jobs]
    names = dict.fromkeys(name for row in rows for name in row)
    data = {name: pa.array([row.get(name) for row in rows]) for name in names}
    ours = {
        JOB_ID: pa.array([job.id for job in jobs], pa.string()),
        NAME: pa.array([job.name for job in jobs], pa.string()),
        ATTEMPT: pa.array([job.attempt for job in jobs], pa.int32()),
    }
    return pa.table({**ours, **data, **ours})


def _keyed(data: Any) -> dict[str, Any]:
    if not isinstance(data, dict):
        return {DATA: data}
    return {str(key): value for key, value in cast("dict[Any, Any]", data).items()}


def with_tables(call: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Awaitable[Any]]:
    """A call with a list of jobs, for a handler that takes tables."""
    import pyarrow as pa

    async def run(jobs: Sequence[Job]) -> Any:
        try:
            table = table_of(jobs)
        except (pa.ArrowException, OverflowError):
            # Jobs of different shapes share no table; one of them must not fail the others.
            return [await alone(job) for job in jobs]
        return await call(table)

    async def alone(job: Job) -> Any:
        try:
            return outcomes_of(await call(table_of([job])), 1)[0]
        except Exception as error:  # noqa: BLE001 - a user's handler may raise anything
            return error

    return run
