"""Describes what a worker reads from the stream, why a run of it failed, and how it is settled."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from enum import IntEnum, StrEnum
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import msgspec

from chasquimq.model.job_options import RetryOverride


class DlqReason(StrEnum):
    """The label in a DLQ entry's `reason` field; ChasquiMQ (Rust) has the first five."""

    RETRIES_EXHAUSTED = "retries_exhausted"
    DECODE_FAILED = "decode_failed"
    MALFORMED = "malformed"
    OVERSIZE_PAYLOAD = "oversize_payload"
    UNRECOVERABLE = "unrecoverable"
    CRASH_LOOP = "crash_loop"
    UNKNOWN_NAME = "unknown_name"
    MALFORMED_DELAYED = "malformed_delayed"
    EXPIRED = "expired"


# What stands before the entry ids of a lane, so that ids of two streams differ: an id begins
# with a digit. The queue's own stream is lane 0.
LANE_MARKS = (b"", b"h", b"x", b"l")


def entry_key(lane: int, entry_id: bytes) -> bytes:
    """Return what identifies an entry within its queue; two streams may hold the same id."""
    return LANE_MARKS[lane] + entry_id


def lane_and_id(key: bytes) -> tuple[int, bytes]:
    """Return lane and id of a key that `entry_key` made."""
    mark = key[:1]
    return (0, key) if mark.isdigit() else (LANE_MARKS.index(mark), key[1:])


# The key of an entry, and the number of deliveries that it is charged with.
Count = tuple[bytes, int]


class Delivery(msgspec.Struct, gc=False, eq=False):
    """One delivery; the fields above the line come from the server, the others change here.

    `spent` is the envelope's attempt count, `earlier` the charged deliveries before this one,
    `payload` and `envelope` are opaque to everyone but the store.
    """

    entry_id: bytes
    job_id: str
    name: str
    payload: bytes
    created_at_ms: int
    spent: int
    earlier: int
    retry: RetryOverride | None
    extras: dict[str, Any] | None
    due_ms: int | None
    envelope: bytes
    # ---
    is_charged: bool = True
    is_lease_lost: bool = False
    # Its handler ended; only the server's confirmation is missing.
    is_finished: bool = False
    held_since_ns: int = 0
    started_ns: int = 0
    duration_us: int = 0
    # It runs in a thread, which cannot be stopped: no timeout and no requeue while it runs.
    is_unstoppable: bool = False
    # Its `active` event was written.
    is_announced: bool = False
    # Its process pool ends it at the timeout, after a warning.
    has_own_timer: bool = False
    # Which stream of the queue it was read from.
    lane: int = 0

    @property
    def key(self) -> bytes:
        """What identifies it within its queue."""
        return entry_key(self.lane, self.entry_id)

    @property
    def run_number(self) -> int:
        """Which start of the job this is, counted from 1; crashes count."""
        return self.spent + self.earlier + 1

    @property
    def was_redelivered(self) -> bool:
        return self.earlier > 0

    def timeout_ms(self, default: int | None) -> int | None:
        """The job's own time limit, or the worker's."""
        own = self.extras.get("timeout_ms") if self.extras else None
        return own if isinstance(own, int) else default


def ready_times_ms(batch: Sequence[Delivery]) -> list[int]:
    """Return when each became ready, from its entry id."""
    # An id is two numbers: as one JSON array they are read in half the time of splitting each id.
    numbers = b",".join([one.entry_id for one in batch]).replace(b"-", b",")
    return _read_numbers(b"[%b]" % numbers)[::2]


_read_numbers = msgspec.json.Decoder(list[int]).decode


class TakenOver(msgspec.Struct, frozen=True, gc=False):
    """An entry whose lease another worker did not renew; `owner` is empty where it is not known."""

    entry_id: bytes
    silent_ms: int
    owner: str
    lane: int = 0

    @property
    def key(self) -> bytes:
        return entry_key(self.lane, self.entry_id)


class RejectedEntry(msgspec.Struct, frozen=True, gc=False):
    """An entry that cannot be decoded, kept with its bytes for the DLQ."""

    entry_id: bytes
    reason: DlqReason
    detail: str
    name: str
    body: bytes
    lane: int = 0

    @property
    def key(self) -> bytes:
        return entry_key(self.lane, self.entry_id)


def ready_ms(delivery: Delivery) -> int:
    """When the server put the job into the stream, by the server's clock."""
    return int(delivery.entry_id.partition(b"-")[0])


# ── why it failed ─────────────────────────────────────────────────────────────────────────────────

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
_DETAIL_CHARS_MAX = 512


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


# ── how it is settled ─────────────────────────────────────────────────────────────────────────────


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
