"""Logs what goes wrong with the jobs of a worker; what comes in floods is summed up, never dropped."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import lru_cache, wraps
from typing import TYPE_CHECKING, ParamSpec

from chasquimq.model.delivery import Delivery, DlqReason, RejectedEntry, describe
from chasquimq.model.log import LogThrottle, get_logger
from chasquimq.model.retry import Retry, unknown_since_ms

if TYPE_CHECKING:
    from chasquimq.errors import StoreError
    from chasquimq.model.delivery import Burying, Failure, TakenOver
    from chasquimq.model.retry import Bury, RetryPolicy

_P = ParamSpec("_P")
logger = get_logger(__name__)
_MINUTE_S = 60.0
# So many burials, and so many lost leases, have a line of their own in each minute.
_LINES_MAX = 10
_SUM_AFTER_S = 10.0
_KINDS_MAX = 1_000
# Names may be made up by producers: neither memory nor the log may grow with them.
_NAMES_MAX = 1_000
_OTHER_KINDS = "other kinds"
_TEXT_CHARS_MAX, _NAME_CHARS_MAX = 300, 80
_KINDS_SHOWN_MAX, _HANDLERS_SHOWN_MAX, _WORKERS_SHOWN_MAX = 5, 10, 3
# What to look for, where the error does not say it.
_HINTS = {
    DlqReason.CRASH_LOOP: (
        "look for what ended the workers: a lack of memory, a crash in native code, or a kill"
    ),
    DlqReason.RETRIES_EXHAUSTED: "its attempts were spent before it came here",
    DlqReason.EXPIRED: "it waited for longer than its expires_ms allows",
}

Gate = Callable[[str], bool]
# Takes how many lines were held back, in how many seconds, and what they were about.
LogSum = Callable[[int, str, str], None]


class LineLimit:
    """Lets those lines through that its gate lets through, and sums up the others by their kind.

    A kind is a name and what happened to it, as in `send (SmtpError)`.
    """

    def __init__(self, gate: Gate, log_sum: LogSum, sum_after_s: float) -> None:
        self._gate = gate
        self._log_sum = log_sum
        self._sum_after_s = sum_after_s
        self._counts: Counter[str] = Counter()
        self._since_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def allows(self, kind: str, count: int = 1) -> bool:
        """Whether this gets a line; if not, the next sum counts it."""
        if self._gate(kind):
            return True
        if not self._counts:
            self._since_s = time.monotonic()
            self._timer = asyncio.get_running_loop().call_later(self._sum_after_s, self.flush)
        is_known = kind in self._counts or len(self._counts) < _KINDS_MAX
        self._counts[kind if is_known else _OTHER_KINDS] += count
        return False

    def flush(self) -> None:
        """Log the sum of what was held back, if there is any."""
        if self._timer is not None:
            self._timer.cancel()
        counts, self._counts = self._counts, Counter()
        if counts:
            seconds = max(1, round(time.monotonic() - self._since_s))
            self._log_sum(counts.total(), f"in the last {seconds:,} s", _kinds_text(counts))


class FirstOfMinute:
    """Lets so many lines of each minute through."""

    def __init__(self, lines_max: int) -> None:
        self._lines_max = lines_max
        self._count = 0
        self._since_s = float("-inf")

    def __call__(self, _kind: str) -> bool:
        now_s = time.monotonic()
        if now_s - self._since_s >= _MINUTE_S:
            self._count, self._since_s = 0, now_s
        self._count += 1
        return self._count <= self._lines_max


def first_of_minute(log_sum: LogSum) -> LineLimit:
    """Make the limit of lines about deaths: ten a minute, and sums of the others."""
    return LineLimit(FirstOfMinute(_LINES_MAX), log_sum, _SUM_AFTER_S)


class FirstOfKind:
    """Lets one line of each kind through a minute; of a thousand kinds the oldest is forgotten."""

    def __init__(self) -> None:
        # Those let through longest ago come first.
        self._at_s: dict[str, float] = {}

    @property
    def kind_count(self) -> int:
        """How many kinds are remembered, a thousand at most."""
        return len(self._at_s)

    def __call__(self, kind: str) -> bool:
        now_s = time.monotonic()
        at_s = self._at_s.get(kind)
        if at_s is not None and now_s - at_s < _MINUTE_S:
            return False
        self._at_s.pop(kind, None)
        if len(self._at_s) >= _KINDS_MAX:
            del self._at_s[next(iter(self._at_s))]
        self._at_s[kind] = now_s
        return True


def _guarded(log: Callable[_P, None]) -> Callable[_P, None]:
    """A log call that raises nothing: a job's own words must not decide what becomes of it."""

    @wraps(log)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> None:
        try:
            log(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - names and errors are anything
            logger.warning("a line of the failure log is left out: %s", type(error).__name__)

    return call


class FailureLog:
    """Logs failed runs, burials, take-overs and lost leases of one worker.

    Without messages a traceback shows where it happened, and none of the words of the error.
    """

    def __init__(self, queue: str, *, shows_messages: bool = True) -> None:
        self._queue = queue
        self._shows_messages = shows_messages
        self._format = traceback.format_exception if shows_messages else _frames
        self.failed_kinds = FirstOfKind()
        self._failures = LineLimit(self.failed_kinds, self._sum_failures, _MINUTE_S)
        self._burials = first_of_minute(self._sum_burials)
        self._take_overs = LineLimit(FirstOfKind(), self._sum_take_overs, _SUM_AFTER_S)
        self._lost = first_of_minute(self._sum_lost)

    def flush(self) -> None:
        """Log what is still to be summed up; the worker ends."""
        for limit in (self._failures, self._burials, self._take_overs, self._lost):
            limit.flush()

    @_guarded
    def failed(
        self, delivery: Delivery, error: BaseException, failure: Failure, verdict: Retry | Bury
    ) -> None:
        """Log a run that raised, with its traceback: each kind of failure once a minute."""
        if not self._failures.allows(_kind(delivery.name, failure.error_type)):
            return
        is_retried = isinstance(verdict, Retry)
        fate = f"it runs again {_after(verdict.after_ms)}" if is_retried else "it was its last"
        logger.warning(
            "run %d of %s failed, %s: %s\n%s",
            delivery.run_number, _job_text(delivery), fate, failure.text, self._trace(error),
            extra={
                "job_name": delivery.name, "job_id": delivery.job_id,
                "fate": "retried" if is_retried else verdict.reason,
                "run_number": delivery.run_number,
            },
        )  # fmt: skip

    @_guarded
    def buried(self, move: Burying) -> None:
        """Log that a job is in the DLQ: the first ten of a minute, and sums of the others."""
        entry, failure = move.entry, move.failure
        if not self._burials.allows(_kind(entry.name, _what(move))):
            return
        error = one_line(failure.text if failure else move.detail or "", _TEXT_CHARS_MAX)
        why = "; ".join(filter(None, (error, "" if failure else _HINTS.get(move.reason, ""))))
        logger.warning(
            "%s of queue %s is buried as %s %s: %s; `chasqui dlq peek %s` shows it",
            _job_text(entry), self._queue, move.reason, _when(move), why, self._queue,
            extra={
                "job_id": entry.job_id if isinstance(entry, Delivery) else None,
                "job_name": entry.name, "queue": self._queue, "reason": str(move.reason),
                "run_number": move.attempt, "error": error,
            },
        )  # fmt: skip

    @_guarded
    def unproven(self, moves: Sequence[Burying]) -> None:
        """Log burials whose answer was lost, and which found their jobs gone at the second try."""
        shown = ", ".join(_job_text(move.entry) for move in moves[:_KINDS_SHOWN_MAX])
        logger.warning(
            "the connection broke while %s of queue %s went to the DLQ, most likely they are "
            "there; look with `chasqui dlq peek %s`: %s",
            _many(len(moves), "job"), self._queue, self._queue, shown,
            extra={"queue": self._queue, "count": len(moves)},
        )  # fmt: skip

    @_guarded
    def taken_over(self, entries: Sequence[TakenOver], silent_workers: Sequence[str]) -> None:
        """Log jobs of workers that stopped renewing them; where the server says whose they were,

        that counts, and else whichever workers are silent.
        """
        owners = sorted({one.owner for one in entries if one.owner}) or list(silent_workers)
        whose = _workers_text(owners)
        if not self._take_overs.allows(whose, len(entries)):
            return
        silent_s = max(one.silent_ms for one in entries) / 1000
        logger.warning(
            "took over %s of queue %s from %s, not renewed for %.1f s: it died, stood still or "
            "lost the server",
            _many(len(entries), "job"), self._queue, whose, silent_s,
            extra={
                "queue": self._queue, "count": len(entries), "workers": owners,
                "silent_ms": int(silent_s * 1000),
            },
        )  # fmt: skip

    @_guarded
    def lease_lost(self, delivery: Delivery) -> None:
        """Log that another worker may run a job that is held here, too."""
        if not self._lost.allows(one_line(delivery.name, _NAME_CHARS_MAX) or "no name"):
            return
        when = f"in run {delivery.run_number}" if delivery.started_ns else "before its start"
        logger.warning(
            "%s of queue %s lost its lease %s: it was not renewed in time, and another worker may "
            "run it, too", _job_text(delivery), self._queue, when,
            extra={
                "job_id": delivery.job_id, "job_name": delivery.name, "queue": self._queue,
                "run_number": delivery.run_number,
            },
        )  # fmt: skip

    def unjudged(self, delivery: Delivery) -> None:
        """Log an error that could not be judged, so that its job is buried; call it where it is caught."""
        logger.error(
            "the error of %s of queue %s could not be judged, burying it",
            _job_text(delivery), self._queue, exc_info=self._shows_messages,
        )  # fmt: skip

    def unsettled(self, delivery: Delivery, failure: Failure) -> None:
        """Log an attempt whose end could not be settled, so that its job is buried."""
        logger.error(
            "the end of %s of queue %s could not be settled, burying it: %s",
            _job_text(delivery), self._queue, failure.text,
            extra={"job_id": delivery.job_id, "job_name": delivery.name, "queue": self._queue},
        )  # fmt: skip

    def given_up(self, delivery: Delivery, error: Exception) -> None:
        """Log a job that not even a burial ends."""
        logger.error(
            "job %s of queue %s could not be buried, its lease is left to lapse",
            delivery.job_id, self._queue, exc_info=error,
        )  # fmt: skip

    def unsendable(self, entry_id: bytes, error: Exception) -> None:
        """Log an outcome that cannot be encoded, or that the server refuses alone."""
        logger.error(
            "the outcome of entry %r of queue %s cannot be sent: %s",
            entry_id, self._queue, describe(error).error_type,
            exc_info=error if self._shows_messages else None,
        )  # fmt: skip

    def no_traceback(self) -> None:
        """Log that a job is buried without its traceback; call it where the error is caught."""
        logger.error(
            "a traceback of queue %s cannot be kept", self._queue, exc_info=self._shows_messages
        )

    def traceback_left_out(self, move: Burying, refusal: StoreError) -> None:
        """Log that the server took a burial only without its traceback."""
        job_id = move.entry.job_id if isinstance(move.entry, Delivery) else ""
        logger.warning(
            "the traceback of job %s is left out of the DLQ of queue %s: %s",
            job_id, self._queue, refusal,
        )  # fmt: skip

    def _sum_failures(self, count: int, when: str, kinds: str) -> None:
        logger.warning(
            "%s of queue %s failed %s, without tracebacks here: %s",
            _more(count, "run"), self._queue, when, kinds,
            extra={"queue": self._queue, "count": count},
        )  # fmt: skip

    def _sum_burials(self, count: int, when: str, kinds: str) -> None:
        logger.warning(
            "%s of queue %s %s buried %s: %s; `chasqui dlq triage %s` shows them by kind",
            _more(count, "job"), self._queue, _were(count), when, kinds, self._queue,
            extra={"queue": self._queue, "count": count},
        )  # fmt: skip

    def _sum_take_overs(self, count: int, when: str, kinds: str) -> None:
        logger.warning(
            "%s of queue %s %s taken over %s: %s",
            _more(count, "job"), self._queue, _were(count), when, kinds,
            extra={"queue": self._queue, "count": count},
        )  # fmt: skip

    def _sum_lost(self, count: int, when: str, kinds: str) -> None:
        logger.warning(
            "%s of queue %s lost %s lease %s: %s",
            _more(count, "job"), self._queue, "its" if count == 1 else "their", when, kinds,
            extra={"queue": self._queue, "count": count},
        )  # fmt: skip

    def _trace(self, error: BaseException) -> str:
        """The traceback in characters that any log can carry, whatever the error is made of."""
        try:
            text = "".join(self._format(error))
        except KeyboardInterrupt:
            raise
        except BaseException:  # noqa: BLE001 - a user's exception may resist being looked at
            return "<no traceback: the exception cannot be formatted>"
        return text.encode(errors="backslashreplace").decode()


class UnknownNameLog:
    """Warns of jobs that are put back for want of a handler: each name at once, then ever less often."""

    def __init__(self, policy: RetryPolicy, queue: str) -> None:
        self._policy = policy
        self._queue = queue
        self._throttles: dict[str, LogThrottle] = {}

    def note(
        self, delivery: Delivery, handlers: Sequence[str], failure: Failure, now_ms: float
    ) -> None:
        """Log that a job is put back, unless one of its name was logged a moment ago."""
        throttle = self._throttle_of(delivery.name)
        if throttle is None or not throttle.allows():
            return
        left_ms = unknown_since_ms(delivery, now_ms) + self._policy.unknown_name_for_ms - now_ms
        logger.warning(
            "job %s of queue %s: %s; this worker has handlers for %s; the job is put back every %g s, without "
            "an attempt spent, until a worker with its handler takes it, and else is buried as "
            "unknown_name at %s, in %.0f s",
            delivery.job_id, self._queue, failure.message, _listed(handlers),
            self._policy.unknown_name_retry_ms / 1000, _utc(now_ms + left_ms), left_ms / 1000,
            extra={
                "job_name": delivery.name, "job_id": delivery.job_id,
                "not_logged": throttle.take_held_back(),
            },
        )  # fmt: skip

    def _throttle_of(self, name: str) -> LogThrottle | None:
        """When this name may be logged again; None: there are too many names to log them all."""
        throttle = self._throttles.get(name)
        if throttle is None and len(self._throttles) < _NAMES_MAX:
            throttle = self._throttles[name] = LogThrottle()
        return throttle


def _listed(names: Sequence[str]) -> str:
    """The first of many names, and how many more there are."""
    shown = ", ".join(repr(_shortened(name)) for name in names[:_HANDLERS_SHOWN_MAX])
    left_out = len(names) - _HANDLERS_SHOWN_MAX
    return f"{shown} and {left_out:,} more" if left_out > 0 else shown


def _shortened(name: str) -> str:
    return name if len(name) <= _NAME_CHARS_MAX else f"{name[:_NAME_CHARS_MAX]}…"


def _utc(at_ms: float) -> str:
    try:
        return datetime.fromtimestamp(at_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, OSError, ValueError):
        return "a time beyond all calendars"  # an extra of another program may be any number


def one_line(text: str, chars_max: int) -> str:
    """A producer's or an error's words as a part of one line, without a character that moves it."""
    shown = "".join(one if one.isprintable() else " " for one in text[:chars_max])
    return f"{shown}…" if len(text) > chars_max else shown


def _frames(error: BaseException) -> list[str]:
    # Not the lines themselves: a `raise` holds its words as they were written.
    frames = traceback.extract_tb(error.__traceback__)
    return [f'  File "{one.filename}", line {one.lineno}, in {one.name}\n' for one in frames]


def _job_text(entry: Delivery | RejectedEntry) -> str:
    name = one_line(entry.name, _NAME_CHARS_MAX) or "no name"
    if isinstance(entry, Delivery):
        return f"job {one_line(entry.job_id, _TEXT_CHARS_MAX)} ({name})"
    return f"entry {entry.entry_id.decode()} ({name})"


def _kind(name: str, what: str) -> str:
    # Asked for every failure; of a long name only the start is remembered.
    return f"{_shown_name(name[: _NAME_CHARS_MAX + 1])} ({what})"


@lru_cache(_NAMES_MAX)
def _shown_name(name: str) -> str:
    return one_line(name, _NAME_CHARS_MAX) or "no name"


def _what(move: Burying) -> str:
    """What ended a job: its error, or the reason of its burial where it never failed."""
    return move.failure.error_type if move.failure else str(move.reason)


def _when(move: Burying) -> str:
    return f"after run {move.attempt}" if move.attempt else "before its first run"


def _after(after_ms: int) -> str:
    return f"in {after_ms / 1000:,.1f} s" if after_ms else "at once"


def _workers_text(workers: Sequence[str]) -> str:
    if not workers:
        return "a worker that is gone"
    left_out = len(workers) - _WORKERS_SHOWN_MAX
    shown = " or ".join(one_line(one, _NAME_CHARS_MAX) for one in workers[:_WORKERS_SHOWN_MAX])
    return f"worker {shown}{f' or {left_out:,} more' if left_out > 0 else ''}"


def _kinds_text(counts: Counter[str]) -> str:
    shown = counts.most_common(_KINDS_SHOWN_MAX)
    text = ", ".join(f"{count:,} {kind}" for kind, count in shown)
    left_out = counts.total() - sum(count for _, count in shown)
    return f"{text} and {left_out:,} of other kinds" if left_out else text


def _more(count: int, noun: str) -> str:
    return f"{count:,} more {noun}{'' if count == 1 else 's'}"


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _were(count: int) -> str:
    return "was" if count == 1 else "were"
