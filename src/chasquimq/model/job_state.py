"""Where a job is, as far as the server can tell."""

from __future__ import annotations

from typing import Literal

import msgspec

State = Literal["ready", "running", "delayed", "dead", "completed", "unknown"]


class JobState(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one job; None stands for what its state does not tell.

    `ready` waits for a worker, `running` is held by one, `delayed` waits for its time (retries
    too), `dead` lies in the DLQ, `completed` left a result or an outcome behind. A job that
    completed without either is `unknown`, as is one that never was.

    `attempt` counts runs already spent, of a dead job all its runs. `entry_id` is the place in
    the stream or the DLQ. `since_ms` is when the server last heard that `worker` holds the job.
    `waits_for` says why a `delayed` job that is due again and again does not run: no worker that
    met it has its handler. After `waits_until_ms` it is buried.
    `scanned_all` is False where the search gave up before it had seen every entry, so that
    `unknown` does not mean gone.
    """

    job_id: str
    state: State
    name: str | None = None
    attempt: int | None = None
    entry_id: str | None = None
    worker: str | None = None
    since_ms: int | None = None
    due_ms: int | None = None
    reason: str | None = None
    error: str | None = None
    waits_for: str | None = None
    waits_since_ms: int | None = None
    waits_until_ms: int | None = None
    scanned_all: bool = True
