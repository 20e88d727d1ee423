"""Every error of the library, in one tree.

    ChasquiError
    ├─ SettingsError(ValueError)        a setting or argument was refused
    │  ├─ KindRefused(TypeError)        it was refused because it is of another kind
    │  ├─ LimitExceeded(RuntimeError)   it was refused because it is out of range
    │  ├─ ScheduleRefused(RuntimeError) a repeatable job would never fire as asked
    │  └─ PreconditionFailed            it does not fit what is there now: a lake, a server, Java
    ├─ WireError
    │  ├─ EncodeError(TypeError)        a value has no MessagePack form
    │  ├─ DecodeError(ValueError)       bytes are not what the wire says
    │  └─ PayloadTooLarge(ValueError)   a payload is over its cap
    ├─ StoreError(RuntimeError)         the server could not do what was asked
    │  ├─ ConnectionLost                the connection broke; `outcome` says whether it may be done
    │  ├─ ServerUnreachable             no connection could be opened
    │  ├─ ServerOutOfMemory             the server refuses writes until memory is freed
    │  ├─ QueueFull                     `max_stream_len` is reached
    │  ├─ IdConflict                    a job id is taken by a different job
    │  ├─ DurabilityNotMet              fewer confirmations than the durability class asks for
    │  ├─ CredentialsRefused(SettingsError) a credential provider answered something else
    │  ├─ AbilityMissing                the server lacks a command that was asked for by name
    │  ├─ GroupConflict                 workers of another group consume the same stream
    │  ├─ ScriptFailed                  a script raised inside the server
    │  ├─ EntriesLost                   a reader of history or events came too late for some
    │  └─ ServerRefused                 any other error reply
    ├─ JobError
    │  ├─ BatchAnswer                   a batch handler returned too much or too little
    │  ├─ JobFailed(TimeoutError)       the job ended in the DLQ
    │  ├─ JobTimeout                    a handler ran past its `timeout_ms`
    │  ├─ ResultExpired(TimeoutError)   the result was stored and is gone
    │  └─ RetryLater                    raised by handlers: run again later, no attempt spent
    ├─ SparkFailed(RuntimeError)        Spark could not do what was asked
    │  ├─ ProcessLate                   a Python process of Spark did not start in time
    │  ├─ RowsRefused                   rows of a table cannot become jobs
    │  └─ WriteFailed                   rows of a table were not all added
    ├─ EditRefused                      raised by the edit of a replay: leave this job
    ├─ NotSupportedError(RuntimeError)  asked for something this version does not do
    └─ UnrecoverableError(RuntimeError) raised by handlers: no retry, bury now

Messages follow one formula: what must hold, what was found, what to try. Each class says with
which exit code a command ends that it stops.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import ClassVar, Final, Literal

Outcome = Literal["unknown", "not_done"]

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2


class ChasquiError(Exception):
    """Catch this to catch everything the library raises on purpose.

    `exit_code` is what a command answers that it stops: 1, it failed; 2, it could never be right.
    """

    exit_code: ClassVar[int] = EXIT_FAILED


class SettingsError(ChasquiError, ValueError):
    """Change the named setting or argument so that the rule holds."""

    exit_code: ClassVar[int] = EXIT_USAGE

    def __init__(self, name: str, found: object, rule: str, *, hint: str = "") -> None:
        self.name = name
        self.found = found
        self.rule = rule
        self._hint = hint
        super().__init__(f"{name} must be {rule}, got {found!r}{'; ' + hint if hint else ''}")

    def renamed(self, name: str) -> SettingsError:
        """The same refusal under the name that the user knows the value by."""
        return type(self)(name, self.found, self.rule, hint=self._hint)


class KindRefused(SettingsError, TypeError):
    """Pass a value of the kind that the message names."""


class LimitExceeded(SettingsError, RuntimeError):
    """Bring the value into the range that the message names."""


class ScheduleRefused(SettingsError, RuntimeError):
    """Correct the cron expression, the zone or the bounds, so that there is a time to fire."""


class PreconditionFailed(SettingsError):
    """Change what is there, or name another; the same value may be right tomorrow."""

    exit_code: ClassVar[int] = EXIT_FAILED


class WireError(ChasquiError):
    """A value and its bytes do not fit together."""


class EncodeError(WireError, TypeError):
    """Convert the named value to None, bool, int, float, str, bytes, list or dict, then add it."""


class DecodeError(WireError, ValueError):
    """Find the program that wrote these bytes: they are not the ChasquiMQ wire."""


class EditRefused(ChasquiError):
    """Raise it in the `edit` of a replay to leave the job where it is."""


class PayloadTooLarge(WireError, ValueError):
    """Store the bulk elsewhere and put a reference in the job, or raise the cap."""

    def __init__(self, payload_bytes: int, cap_bytes: int) -> None:
        self.payload_bytes = payload_bytes
        self.cap_bytes = cap_bytes
        super().__init__(
            f"a payload must be at most {cap_bytes} bytes, got {payload_bytes}; "
            "store the bulk elsewhere and put a reference in the job"
        )


class StoreError(ChasquiError, RuntimeError):
    """The server could not do what was asked; the subclass says what to do about it.

    `job_ids` names the jobs of the call that the error is about, if it is about jobs.
    """

    job_ids: Sequence[str] = ()


class ConnectionLost(StoreError):
    """Check `outcome`: `unknown` means the act may have happened, `not_done` that it did not."""

    def __init__(
        self, message: str, *, job_ids: Sequence[str] = (), outcome: Outcome = "unknown"
    ) -> None:
        self.job_ids = list(job_ids)
        self.outcome: Outcome = outcome
        super().__init__(message)


class ServerUnreachable(ConnectionLost):
    """Start the server, or correct the URL; nothing was sent."""

    def __init__(self, message: str, *, job_ids: Sequence[str] = ()) -> None:
        super().__init__(message, job_ids=job_ids, outcome="not_done")


class ServerOutOfMemory(StoreError):
    """Raise `maxmemory` or let the workers drain; nothing was written."""


class QueueFull(StoreError):
    """Slow down or add workers; the jobs in `job_ids` were not added."""

    def __init__(self, queue: str, max_stream_len: int, job_ids: Sequence[str]) -> None:
        self.queue = queue
        self.max_stream_len = max_stream_len
        self.job_ids = list(job_ids)
        super().__init__(
            f"queue {queue!r} may hold at most {max_stream_len} jobs and has no room for "
            f"{len(self.job_ids)} more; slow down, add workers or raise max_stream_len"
        )


class IdConflict(StoreError):
    """Choose another job id, or add with `on_conflict="keep"` to keep the first job."""

    def __init__(self, job_ids: Sequence[str]) -> None:
        self.job_ids = list(job_ids)
        super().__init__(
            "a job id names one job within its unique window, but these ids are taken by "
            f"a job with another name or payload: {', '.join(map(repr, self.job_ids))}; "
            'choose another id, or pass on_conflict="keep"'
        )


class DurabilityNotMet(StoreError):
    """The jobs in `job_ids` were written, but fewer copies confirmed them than asked for."""

    def __init__(self, message: str, job_ids: Sequence[str]) -> None:
        self.job_ids = list(job_ids)
        super().__init__(message)


class CredentialsRefused(SettingsError, StoreError):
    """Correct the credential provider; nothing was sent. `found` is the shape of its answer."""

    def __init__(self, found: str) -> None:
        super().__init__(
            "what credential_provider answers",
            found,
            "a tuple of user and password, both text",
            hint="write it with `async def`, and answer (user, password) or (None, password)",
        )


class AbilityMissing(StoreError):
    """Use a newer server, or leave the choice to the probe."""


class GroupConflict(StoreError):
    """Use the group that consumes the queue already, or another queue.

    `found` names the groups in use, `group` is the one that was asked for.
    """

    def __init__(self, message: str, *, queue: str, group: str, found: Sequence[str]) -> None:
        self.queue = queue
        self.group = group
        self.found = list(found)
        super().__init__(message)


class ScriptFailed(StoreError):
    """Report it: one of our scripts raised inside the server."""


class EntriesLost(StoreError):
    """Read more often or keep more of the stream; or accept the loss, as the message says.

    `lost` is how many entries of the stream are gone, None where it is not known.
    """

    def __init__(self, message: str, *, queue: str, lost: int | None) -> None:
        self.queue = queue
        self.lost = lost
        super().__init__(message)


class ServerRefused(StoreError):
    """Read `code`: the server answered with an error of its own."""

    def __init__(self, message: str, *, code: str) -> None:
        self.code = code
        super().__init__(message)


class JobError(ChasquiError):
    """Something about one job."""


class JobFailed(JobError, TimeoutError):
    """Read `reason` and `error`: the job ended in the DLQ.

    It is a TimeoutError, because that is what a wait for it raises in ChasquiMQ (Rust).
    """

    def __init__(self, job_id: str, reason: str, error: str = "") -> None:
        self.job_id = job_id
        self.reason = reason
        self.error = error
        super().__init__(f"job {job_id!r} ended in the DLQ ({reason}): {error or 'no error text'}")


class BatchAnswer(JobError):
    """Return None, or one outcome for each job of the batch; an error in it fails that job."""

    def __init__(self, count: int, found: str) -> None:
        super().__init__(
            f"a batch of {count} must return None or a list of {count} outcomes, found {found}"
        )


class JobTimeout(JobError):
    """Give the handler more time, or let it do less."""

    def __init__(self, timeout_ms: int) -> None:
        self.timeout_ms = timeout_ms
        super().__init__(f"the handler must end within {timeout_ms} ms and did not")


class ResultExpired(JobError, TimeoutError):
    """Wait sooner, or keep results longer with `result_ttl_ms`."""


class RetryLater(JobError):
    """Raise it in a handler to run the same attempt again after `delay_ms`, or a `timedelta`.

    What is neither counts as a failure of the run, whose error says so.
    """

    def __init__(self, delay_ms: int | timedelta, reason: str = "") -> None:
        if isinstance(delay_ms, timedelta):
            delay_ms = delay_ms // timedelta(milliseconds=1)
        self.delay_ms = delay_ms
        super().__init__(reason or _wait_text(delay_ms))


def _wait_text(delay_ms: object) -> str:
    is_nan = isinstance(delay_ms, float) and math.isnan(delay_ms)
    if isinstance(delay_ms, int | float) and not is_nan:
        return f"run again in {delay_ms} ms"
    return f"RetryLater must be given milliseconds or a timedelta, got {delay_ms!r}"


class SparkFailed(ChasquiError, RuntimeError):
    """Read what Spark said; its own log says more."""


class ProcessLate(SparkFailed):
    """Start the query again: a Python process of Spark did not start in time."""


class RowsRefused(SparkFailed):
    """Correct the rows, or leave them out; none was added.

    `faults` says what is wrong with how many, of `rows`.
    """

    def __init__(self, message: str, *, faults: Mapping[str, int], rows: int) -> None:
        self.faults = dict(faults)
        self.rows = rows
        super().__init__(message)


class WriteFailed(SparkFailed):
    """Put right what the message names, then write again; rows with ids are not added twice.

    `kind` is the name of the error that ended a task, empty where it is none of ours. `run` is
    what a second write takes as its `run_id` to add only rows that are missing: the caller's own
    where there was one.
    """

    def __init__(self, message: str, *, kind: str, run: str) -> None:
        self.kind = kind
        self.run = run
        super().__init__(message)


class NotSupportedError(ChasquiError, RuntimeError):
    """Do without it, or look in the changelog for the version that has it."""


class UnrecoverableError(ChasquiError, RuntimeError):
    """Raise it in a handler to bury the job at once, whatever its budget."""
