"""Jobs of a batch as an Arrow table: a column for each key of their data."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, cast

from chasquimq.batching import outcomes_of
from chasquimq.errors import NotSupportedError

if TYPE_CHECKING:
    import pyarrow as pa

    from chasquimq.job import Job

# What tells one row from another; the data may have any other name.
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
