"""Decides what happens to a job whose handler failed: retry or bury; fingerprints its error."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import msgspec

from chasquimq.errors import DecodeError, RetryLater, UnrecoverableError
from chasquimq.model.backoff import Backoff, BackoffDefaults, RandomSource, delay_ms
from chasquimq.model.delivery import Delivery, DlqReason, RejectedEntry

# ── the fingerprint of an error ───────────────────────────────────────────────────────────────────

_PLACEHOLDERS = (
    (re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"), "<uuid>"),
    # A quotation mark after a letter is an apostrophe, except in a literal such as b'…'.
    (re.compile(r"(?<!\w)[bru]?'[^']*'(?!\w)|(?<!\w)[bru]?\"[^\"]*\"|`[^`]*`"), "<text>"),
    (re.compile(r"(?:[A-Za-z]:)?(?:[\\/][\w.\-+@~]+){2,}"), "<path>"),
    (re.compile(r"\b0x[0-9a-fA-F]+\b"), "<hex>"),
    (re.compile(r"\b(?=[0-9a-fA-F]*\d)[0-9a-fA-F]{8,}\b"), "<hex>"),
    # After the hex runs, whose marks are kept on servers; before digits would cut it to pieces.
    (re.compile(r"(?<![^\W_])[0-7][0-9A-HJKMNP-TV-Z]{25}(?![^\W_])", re.IGNORECASE), "<ulid>"),
    (re.compile(r"\d+(?:\.\d+)?"), "<n>"),
)
_MESSAGE_CHARS_MAX = 2_048


def normalise(message: str) -> str:
    """The message with digits, hex runs, UUIDs, ULIDs, quoted text and paths replaced."""
    message = message[:_MESSAGE_CHARS_MAX]
    for pattern, placeholder in _PLACEHOLDERS:
        message = pattern.sub(placeholder, message)
    return " ".join(message.split())


@lru_cache(maxsize=1_024)
def fingerprint(error_type: str, message: str) -> str:
    """Return sixteen hex digits, equal for errors that differ in details only."""
    text = f"{error_type}\0{normalise(message)}".encode(errors="backslashreplace")
    return blake2b(text, digest_size=8).hexdigest()


# ── retry or bury ─────────────────────────────────────────────────────────────────────────────────

_DETAIL_CHARS_MAX = 512
# Keys of the extras of a job that no handler has the name of. ChasquiMQ (Rust) knows neither.
UNKNOWN_SINCE, UNKNOWN_UNTIL = "unknown_since_ms", "unknown_until_ms"
# Due times are floats to the server; beyond this they are no whole milliseconds any more.
_AFTER_MS_MAX = 2**52


class UnknownName(Exception):
    """No handler has this job's name; `handlers` are the known names, the most similar first."""

    def __init__(self, message: str = "", handlers: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.handlers = handlers


class Failure(msgspec.Struct, frozen=True, gc=False):
    """The error of a failed attempt, as text that can be stored."""

    error_type: str
    message: str

    @property
    def text(self) -> str:
        return f"{self.error_type}: {self.message}" if self.message else self.error_type

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.error_type, self.message)


class Retry(msgspec.Struct, frozen=True, gc=False):
    """Run again later; `spent` is the number of attempts used by then."""

    after_ms: int
    spent: int


class Bury(msgspec.Struct, frozen=True, gc=False):
    """Give up: move the job to the DLQ."""

    reason: DlqReason


class HandlerLimits(msgspec.Struct, frozen=True, gc=False):
    """The limits of one handler's jobs; None means the worker's limit."""

    max_attempts: int | None = None
    backoff: Backoff | None = None
    timeout_ms: int | None = None


NO_LIMITS = HandlerLimits()


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The limits of a worker and of its handlers, for jobs without limits of their own."""

    max_attempts: int
    backoff: BackoffDefaults
    unknown_name_retry_ms: int
    unknown_name_for_ms: int
    timeout_ms: int | None = None
    # The limits of the handler of every name, where there is only one handler.
    any_name: HandlerLimits = NO_LIMITS
    by_name: Mapping[str, HandlerLimits] = field(default_factory=dict[str, HandlerLimits])

    def max_attempts_of(self, delivery: Delivery) -> int:
        """The job's own number of attempts, or its handler's, or the worker's."""
        granted = self._limits_of(delivery).max_attempts
        return delivery.max_attempts(self.max_attempts if granted is None else granted)

    def backoff_of(self, delivery: Delivery) -> Backoff | None:
        """The job's own rule, or its handler's; None: the worker's defaults."""
        own = delivery.retry.backoff if delivery.retry else None
        return self._limits_of(delivery).backoff if own is None else own

    def timeout_ms_of(self, delivery: Delivery) -> int | None:
        """The job's own time limit, or its handler's, or the worker's."""
        granted = self._limits_of(delivery).timeout_ms
        return delivery.timeout_ms(self.timeout_ms if granted is None else granted)

    def _limits_of(self, delivery: Delivery) -> HandlerLimits:
        return self.by_name.get(delivery.name, self.any_name)


def judge_start(delivery: Delivery, policy: RetryPolicy, now_ms: float) -> Bury | None:
    """Return why the job must not start; None if it may."""
    if delivery.run_number > policy.max_attempts_of(delivery):
        return Bury(DlqReason.CRASH_LOOP if delivery.earlier else DlqReason.RETRIES_EXHAUSTED)
    if delivery.extras is not None and _is_expired(delivery, now_ms):
        return Bury(DlqReason.EXPIRED)
    return None


def judge(
    delivery: Delivery, error: BaseException, policy: RetryPolicy, dice: RandomSource, now_ms: float
) -> Retry | Bury:
    """Return what the handler's error means for its job."""
    run_number = delivery.run_number
    if isinstance(error, UnknownName):
        return _judge_unknown_name(delivery, policy, now_ms)
    if isinstance(error, RetryLater) and (after_ms := _asked_ms(error)) is not None:
        return Retry(after_ms, run_number - 1)
    if isinstance(error, UnrecoverableError):
        return Bury(DlqReason.UNRECOVERABLE)
    if isinstance(error, DecodeError):
        return Bury(DlqReason.DECODE_FAILED)
    if run_number >= policy.max_attempts_of(delivery):
        return Bury(DlqReason.RETRIES_EXHAUSTED)
    after_ms = delay_ms(run_number, policy.backoff_of(delivery), policy.backoff, dice)
    return Retry(min(after_ms, _AFTER_MS_MAX), run_number)


def is_at_once(verdict: Retry, delivery: Delivery) -> bool:
    """Return whether the next run need not wait.

    A snooze always waits a little: it spends no attempt, so a handler could ask for it forever.
    """
    return verdict.after_ms == 0 and verdict.spent == delivery.run_number


def describe(error: BaseException, redact: Callable[[str, str], str] | None = None) -> Failure:
    """Return an error as stored text, even if its `__str__` raises.

    `redact` gets the whole message: it could not recognise a secret that was cut in half.
    """
    try:
        error_type, message = _remote_words(error) or (type(error).__name__, str(error))
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - a user's __str__ may raise anything
        error_type, message = type_name(type(error)), "<exception str() failed>"
    if redact is not None:
        message = redact(error_type, message)
    return Failure(_storable(error_type), _storable(message))


def unknown_since_ms(delivery: Delivery, now_ms: float) -> int:
    """When a worker first met this job without a handler for it."""
    since = (delivery.extras or {}).get(UNKNOWN_SINCE)
    return since if isinstance(since, int) else int(now_ms)


def handler_missing(delivery: Delivery, policy: RetryPolicy, now_ms: float) -> dict[str, int]:
    """The extras of a job that is put back for want of a handler: since when, and until when."""
    since_ms = unknown_since_ms(delivery, now_ms)
    return {UNKNOWN_SINCE: since_ms, UNKNOWN_UNTIL: since_ms + policy.unknown_name_for_ms}


def handler_found(delivery: Delivery) -> dict[str, int | None] | None:
    """What to take out of the extras of a job once a handler ran it; None where there is nothing."""
    is_marked = delivery.extras is not None and UNKNOWN_SINCE in delivery.extras
    return {UNKNOWN_SINCE: None, UNKNOWN_UNTIL: None} if is_marked else None


def handler_wait(name: str, extras: Mapping[str, Any] | None) -> dict[str, Any]:
    """What a job that is put back waits for, as fields of its state; {} where it has a handler."""
    since_ms = extras.get(UNKNOWN_SINCE) if extras else None
    if not extras or not isinstance(since_ms, int):
        return {}
    until_ms = extras.get(UNKNOWN_UNTIL)
    named = f"named {name!r}" if name else "for jobs without a name"
    return {
        "waits_for": f"a worker with a handler {named}",
        "waits_since_ms": since_ms,
        "waits_until_ms": until_ms if isinstance(until_ms, int) else None,
    }


def _asked_ms(error: RetryLater) -> int | None:
    """The wait a handler asked for; None where it is no time, so that it counts as a failure."""
    asked: Any = getattr(error, "delay_ms", None)  # users set anything, subclasses forget it
    if not isinstance(asked, int | float) or (isinstance(asked, float) and math.isnan(asked)):
        return None
    return int(min(max(0, asked), _AFTER_MS_MAX))


# The name of a class as it was written, whatever its metaclass answers.
type_name: Callable[[type], str] = vars(type)["__name__"].__get__


def _remote_words(error: BaseException) -> tuple[str, str] | None:
    """What was raised in a child process; the error over here says it, or its cause does."""
    cause = error.__cause__
    if cause is None:
        return _words_of(error) if vars(error) else None
    return _words_of(error) or _words_of(cause)


def _words_of(error: BaseException) -> tuple[str, str] | None:
    facts = vars(error)
    error_type, message = facts.get("type_name"), facts.get("message")
    if isinstance(error_type, str) and isinstance(message, str):
        return error_type, message
    return None


def _storable(text: str) -> str:
    if text.isascii():
        return text[:_DETAIL_CHARS_MAX]
    # Half a surrogate pair, as in the name of a file, has no UTF-8.
    return text[:_DETAIL_CHARS_MAX].encode(errors="backslashreplace").decode()


def _judge_unknown_name(delivery: Delivery, policy: RetryPolicy, now_ms: float) -> Retry | Bury:
    if now_ms - unknown_since_ms(delivery, now_ms) >= policy.unknown_name_for_ms:
        return Bury(DlqReason.UNKNOWN_NAME)
    return Retry(policy.unknown_name_retry_ms, delivery.run_number - 1)


def _is_expired(delivery: Delivery, now_ms: float) -> bool:
    expires_ms = (delivery.extras or {}).get("expires_ms")
    if not isinstance(expires_ms, int) or delivery.run_number > 1:
        return False
    return now_ms - ready_ms(delivery) > expires_ms


def ready_ms(delivery: Delivery) -> int:
    """When the server put the job into the stream, by the server's clock."""
    return int(delivery.entry_id.partition(b"-")[0])


# ── what is sent to settle a job ──────────────────────────────────────────────────────────────────


class SettleResult(IntEnum):
    """How the server answered a settle call: done, or the entry was not ours."""

    NOT_OWNER = -1
    GONE = 0
    DONE = 1


class Completing(msgspec.Struct, frozen=True, gc=False):
    """A delivery whose handler returned; `result` is None when there is nothing to keep."""

    delivery: Delivery
    result: bytes | None

    @property
    def entry(self) -> Delivery:
        return self.delivery

    @property
    def entry_id(self) -> bytes:
        return self.delivery.entry_id

    @property
    def key(self) -> bytes:
        return self.delivery.key

    @property
    def lane(self) -> int:
        return self.delivery.lane


class Retrying(msgspec.Struct, frozen=True, gc=False):
    """A delivery on its way to another run; `spent` goes into its new envelope.

    Its extras travel as they came, but for those that `changes` sets.
    """

    delivery: Delivery
    after_ms: int
    spent: int
    changes: dict[str, int | None] | None
    failure: Failure | None = None
    # It goes back to the stream instead of waiting in the delayed set.
    is_at_once: bool = False

    @property
    def entry(self) -> Delivery:
        return self.delivery

    @property
    def entry_id(self) -> bytes:
        return self.delivery.entry_id

    @property
    def key(self) -> bytes:
        return self.delivery.key

    @property
    def lane(self) -> int:
        return self.delivery.lane

    @property
    def was_run(self) -> bool:
        """Whether a handler was called; a job of an unknown name has none."""
        return self.delivery.started_ns > 0

    @property
    def is_snooze(self) -> bool:
        """Whether it comes back without an attempt spent."""
        delivery = self.delivery
        return self.spent <= delivery.spent + delivery.earlier


class Burying(msgspec.Struct, frozen=True, gc=False):
    """An entry on its way to the DLQ; `attempt` 0 means that it never started.

    `traceback` is that of its last attempt; empty where nothing of it is kept.
    """

    entry: Delivery | RejectedEntry
    reason: DlqReason
    attempt: int
    failure: Failure | None = None
    traceback: str = ""

    @property
    def entry_id(self) -> bytes:
        return self.entry.entry_id

    @property
    def key(self) -> bytes:
        return self.entry.key

    @property
    def lane(self) -> int:
        return self.entry.lane

    @property
    def was_run(self) -> bool:
        """Whether a handler was called; what was refused on arrival never saw one."""
        return isinstance(self.entry, Delivery) and self.entry.started_ns > 0

    @property
    def detail(self) -> str | None:
        """What the reason alone does not say; None where there is nothing to add."""
        if isinstance(self.entry, RejectedEntry):
            return self.entry.detail
        return _lost_runs_text(self) if self.is_crash_loop else None

    @property
    def fingerprint(self) -> str:
        """The mark of its kind; all crash loops are one kind."""
        if self.failure is not None:
            return self.failure.fingerprint
        return fingerprint(self.reason, "") if self.is_crash_loop else ""

    @property
    def is_crash_loop(self) -> bool:
        return self.reason is DlqReason.CRASH_LOOP

    @property
    def size_bytes(self) -> int:
        entry = self.entry
        return len(entry.body if isinstance(entry, RejectedEntry) else entry.envelope)


def _lost_runs_text(move: Burying) -> str:
    lost = move.entry.earlier if isinstance(move.entry, Delivery) else 0
    workers = "its worker" if lost == 1 else "their workers"
    return f"{lost} of {move.attempt} runs reported no end: {workers} died or went silent"
