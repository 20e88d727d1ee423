"""Where a job is and what became of it, as far as the server can tell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from chasquimq.model.json_value import JsonForm, ToDict

State = Literal["ready", "running", "delayed", "dead", "completed", "unknown"]
Source = Literal["stream", "delayed", "dlq", "outcome", "result", "history"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState(ToDict):
    """What is known of one job; None stands for what is not known.

    `ready` waits for a worker, `running` is held by one, `delayed` waits for its time (retries
    too), `dead` was given up, `completed` is done. A job that ended long ago is `unknown` where
    nothing is kept of it, as is one that never was. `source` is where the state is known from.

    `attempt` counts runs already spent, of a job that ended all its runs. `entry_id` is the place
    in the stream or the DLQ. `worker` runs the job or ran it last; `since_ms` is when the server
    last heard that it holds the job. `created_at_ms` is of the producer's clock, other times are of
    the server's; `started_at_ms` and `duration_us` are those of the last run. `data` is what the
    job carries, where `is_decoded`; `payload_bytes` is its size. `has_result` says that a result is
    kept. `waits_for` says why a `delayed` job that is due again and again does not run: no worker
    that met it has its handler. After `waits_until_ms` it is buried.
    `scanned_all` is False where the search gave up before it had seen every entry, so that
    `unknown` does not mean gone.
    """

    job_id: str
    state: State
    source: Source | None = None
    name: str | None = None
    attempt: int | None = None
    entry_id: str | None = None
    worker: str | None = None
    since_ms: int | None = None
    created_at_ms: int | None = None
    due_ms: int | None = None
    ready_at_ms: int | None = None
    started_at_ms: int | None = None
    finished_at_ms: int | None = None
    duration_us: int | None = None
    reason: str | None = None
    error: str | None = None
    waits_for: str | None = None
    waits_since_ms: int | None = None
    waits_until_ms: int | None = None
    traceback: str | None = None
    payload_bytes: int | None = None
    is_decoded: bool = False
    data: Annotated[Any, JsonForm()] = None
    has_result: bool = False
    scanned_all: bool = True
