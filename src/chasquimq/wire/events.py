"""Encodes and decodes the events of a queue, as entries of its events stream."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from chasquimq.errors import DecodeError
from chasquimq.wire.stream_entry import (
    NAMES_CACHED_MAX,
    bulk,
    command,
    first_values,
    fixed,
    read_text,
    read_uint,
    safe_text,
)

if TYPE_CHECKING:
    from chasquimq.model.delivery import Burying, Delivery, Failure, Retrying

# ── events as fields ──────────────────────────────────────────────────────────────────────────────

REASON_CHARS_MAX = 512


class EventKind(StrEnum):
    """The events that we write; readers accept other kinds too."""

    WAITING = "waiting"
    ACTIVE = "active"
    COMPLETED = "completed"
    FAILED = "failed"
    RETRY_SCHEDULED = "retry-scheduled"
    DLQ = "dlq"
    DRAINED = "drained"
    DELAYED = "delayed"


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to a job, and when.

    `attempt` is 1-based. `ts_ms` is the emitter's clock, 0 where a foreign writer gave none.
    `rest` holds the fields this version does not know.
    """

    kind: str
    job_id: str
    ts_ms: int
    name: str = ""
    attempt: int | None = None
    reason: str | None = None
    backoff_ms: int | None = None
    delay_ms: int | None = None
    duration_us: int | None = None
    enqueued_at_ms: int | None = None
    worker: str | None = None
    delivery_count: int | None = None
    error_type: str | None = None
    fingerprint: str | None = None
    due_ms: int | None = None
    rest: dict[str, str] = {}


# Field on the wire and attribute here, in the order of writing: those of ChasquiMQ (Rust) first.
_OPTIONAL_FIELDS = (
    ("attempt", "attempt"),
    ("reason", "reason"),
    ("backoff_ms", "backoff_ms"),
    ("delay_ms", "delay_ms"),
    ("duration_us", "duration_us"),
    ("enq", "enqueued_at_ms"),
    ("w", "worker"),
    ("dc", "delivery_count"),
    ("ec", "error_type"),
    ("fp", "fingerprint"),
    ("due", "due_ms"),
)


def encode_event(event: Event) -> list[str]:
    """Encode an event; an empty name is left out, the id never is."""
    fields = ["e", event.kind, "id", event.job_id, "ts", str(event.ts_ms)]
    if event.name:
        fields += ("n", event.name)
    for field, attribute in _OPTIONAL_FIELDS:
        value: str | int | None = getattr(event, attribute)
        if value is not None:
            fields += (field, _event_text(value))
    for field, text in event.rest.items():
        fields += (field, text)
    return fields


def decode_event(fields: Sequence[bytes]) -> Event:
    """Read an event of any writer.

    Raises:
        DecodeError: the entry does not say what happened.
    """
    found = first_values(fields)
    kind = found.pop(b"e", b"")
    if not kind:
        raise DecodeError("an event must have a field `e`, got none")
    return Event(
        kind=read_text(kind),
        job_id=_take_text(found, b"id") or "",
        ts_ms=_take_uint(found, b"ts") or 0,
        name=_take_text(found, b"n") or "",
        attempt=_take_uint(found, b"attempt"),
        reason=_take_text(found, b"reason"),
        backoff_ms=_take_uint(found, b"backoff_ms"),
        delay_ms=_take_uint(found, b"delay_ms"),
        duration_us=_take_uint(found, b"duration_us"),
        enqueued_at_ms=_take_uint(found, b"enq"),
        worker=_take_text(found, b"w"),
        delivery_count=_take_uint(found, b"dc"),
        error_type=_take_text(found, b"ec"),
        fingerprint=_take_text(found, b"fp"),
        due_ms=_take_uint(found, b"due"),
        # Evaluated last: the fields that are left, and numbers that are not valid.
        rest={read_text(field): read_text(raw) for field, raw in found.items()},
    )


def ended_job_id(fields: Sequence[bytes]) -> str | None:
    """Return the job that an event says has ended, without decoding the rest; None for other events."""
    # Every writer begins with these two fields.
    match fields:
        case [b"e", b"completed" | b"dlq", b"id", job_id, *_]:
            return read_text(job_id)
        case _:
            return None


def _event_text(value: str | int) -> str:
    return safe_text(value, REASON_CHARS_MAX) if isinstance(value, str) else str(value)


def _take_text(found: dict[bytes, bytes], field: bytes) -> str | None:
    raw = found.pop(field, None)
    return None if raw is None else read_text(raw)


def _take_uint(found: dict[bytes, bytes], field: bytes) -> int | None:
    number = read_uint(found.get(field))
    if number is not None:
        del found[field]
    return number


# ── templates of commands ─────────────────────────────────────────────────────────────────────────

# Times between 2001 and 2286 have thirteen digits, and nearly all attempts one.
MS_MIN, MS_END = 10**12, 10**13
DIGIT_MAX = 9

_TEXT = b"$%d\r\n%b\r\n"
_MS = b"$13\r\n%d\r\n"
_DIGIT = b"$1\r\n%d\r\n"


class EventTemplate:
    """Encodes `active` or `completed` in a third of the time, from a command prepared for each job name.

    Only numbers of the usual length may be filled in, and jobs that had no due time.
    """

    __slots__ = ("_after", "_before", "ready_made")

    def __init__(self, head: Sequence[bytes], own: Sequence[bytes], worker: bytes) -> None:
        """`head` begins the command and ends with `id`; `own` are fields with their holes."""
        self._before = [*map(fixed, head), _TEXT, fixed(b"ts"), _MS]
        common = [fixed(b"enq"), _MS, fixed(b"w"), fixed(worker), fixed(b"dc"), _DIGIT]
        self._after = [*own, *common]
        # Commands for jobs of a name, to be filled by `%`.
        self.ready_made: dict[str, bytes] = {}

    def learn(self, name: str) -> bytes:
        """Make the command for jobs of this name."""
        # Names made up per job must not fill the memory; forgetting costs a microsecond each.
        if len(self.ready_made) >= NAMES_CACHED_MAX:
            self.ready_made.clear()
        named = [fixed(b"n"), fixed(name.encode())] if name else []
        parts = [*self._before, *named, *self._after]
        template = self.ready_made[name] = b"*%d\r\n" % len(parts) + b"".join(parts)
        return template


def active_template(head: Sequence[bytes], worker: bytes) -> EventTemplate:
    """Holes: id and its length, time, attempt, enqueue time, deliveries."""
    return EventTemplate(head, [fixed(b"attempt"), _DIGIT], worker)


def completed_template(head: Sequence[bytes], worker: bytes) -> EventTemplate:
    """The same with the duration, its length first, behind the attempt."""
    own = [fixed(b"attempt"), _DIGIT, fixed(b"duration_us"), _TEXT]
    return EventTemplate(head, own, worker)


# ── events as commands ────────────────────────────────────────────────────────────────────────────

# XADD, key, *
_HEAD_PARTS = 3
_NS_PER_MS = 1_000_000
_MS_PER_DECADE = 10 * 365 * 86_400_000


class EventEncoder:
    """Encodes the events of one worker, or one producer, on one queue."""

    def __init__(self, key: str, max_len: int, worker: str) -> None:
        heads = {
            kind: (b"XADD", key.encode(), b"*", b"e", kind.encode(), b"id") for kind in EventKind
        }
        self._heads = {kind: b"".join(map(bulk, head)) for kind, head in heads.items()}
        self._worker = _field(b"w", worker.encode())
        self._actives = active_template(heads[EventKind.ACTIVE], worker.encode())
        self._completions = completed_template(heads[EventKind.COMPLETED], worker.encode())
        # Sent now and then, and not as a part of every XADD: that costs the server less.
        self.trim = command("XTRIM", key, "MAXLEN", "~", max_len)

    def actives(self, batch: Sequence[Delivery], offset_ns: int) -> list[bytes]:
        """Starts of handlers; `offset_ns` is the time of day minus the monotonic clock."""
        # No machine has been up for a decade.
        first_ms = offset_ns // _NS_PER_MS
        if not MS_MIN <= first_ms < MS_END - _MS_PER_DECADE:
            return [self._active(one, (one.started_ns + offset_ns) // _NS_PER_MS) for one in batch]
        ready_made, learn = self._actives.ready_made, self._actives.learn
        return [
            (ready_made.get(one.name) or learn(one.name)) % (
                len(job_id := one.job_id.encode()), job_id,
                (one.started_ns + offset_ns) // _NS_PER_MS,
                one.spent + one.earlier + 1, one.created_at_ms, one.earlier + 1,
            )
            if one.due_ms is None and one.spent + one.earlier < DIGIT_MAX
            and MS_MIN <= one.created_at_ms < MS_END
            else self._active(one, (one.started_ns + offset_ns) // _NS_PER_MS)
            for one in batch
        ]  # fmt: skip

    def completions(self, batch: Sequence[Delivery], ts_ms: int) -> list[bytes]:
        """Ends of handlers that returned."""
        if not MS_MIN <= ts_ms < MS_END:
            return [self._completed(one, ts_ms) for one in batch]
        ready_made, learn = self._completions.ready_made, self._completions.learn
        return [
            (ready_made.get(one.name) or learn(one.name)) % (
                len(job_id := one.job_id.encode()), job_id, ts_ms, one.spent + one.earlier + 1,
                len(duration := b"%d" % one.duration_us), duration, one.created_at_ms,
                one.earlier + 1,
            )
            if one.due_ms is None and one.spent + one.earlier < DIGIT_MAX
            and MS_MIN <= one.created_at_ms < MS_END
            else self._completed(one, ts_ms)
            for one in batch
        ]  # fmt: skip

    def failed(self, delivery: Delivery, failure: Failure, ts_ms: int) -> bytes:
        own = b"".join(
            (
                _number(b"attempt", delivery.run_number),
                _text(b"reason", failure.message),
                _number(b"duration_us", delivery.duration_us),
                _text(b"ec", failure.error_type),
                _text(b"fp", failure.fingerprint),
            )
        )
        return self._of_delivery(EventKind.FAILED, delivery, ts_ms, 5, own)

    def retry_scheduled(self, move: Retrying, ts_ms: int) -> bytes:
        """The attempt is the run that it announces."""
        own = _number(b"attempt", move.spent + 1) + _number(b"backoff_ms", move.after_ms)
        return self._of_delivery(EventKind.RETRY_SCHEDULED, move.delivery, ts_ms, 2, own)

    def dlq(self, move: Burying, ts_ms: int) -> bytes:
        """An entry that could not be read has no id and attempt 0."""
        own = _number(b"attempt", move.attempt) + _text(b"reason", move.reason)
        job_id = getattr(move.entry, "job_id", "")
        return self._encode(EventKind.DLQ, job_id, move.entry.name, ts_ms, 3, own + self._worker)

    def delayed(
        self, job_id: str, name: str, ts_ms: int, delay_ms: int, due_ms: int | None
    ) -> bytes:
        """The due time is written only if the caller chose it; else the server's clock decides it."""
        own, count = _number(b"delay_ms", delay_ms), 1
        if due_ms is not None:
            own, count = own + _number(b"due", due_ms), 2
        return self._encode(EventKind.DELAYED, job_id, name, ts_ms, count, own)

    def drained(self, ts_ms: int) -> bytes:
        return self._encode(EventKind.DRAINED, "", "", ts_ms, 1, self._worker)

    def _active(self, delivery: Delivery, ts_ms: int) -> bytes:
        own = _number(b"attempt", delivery.run_number)
        return self._of_delivery(EventKind.ACTIVE, delivery, ts_ms, 1, own)

    def _completed(self, delivery: Delivery, ts_ms: int) -> bytes:
        own = _number(b"attempt", delivery.run_number)
        own += _number(b"duration_us", delivery.duration_us)
        return self._of_delivery(EventKind.COMPLETED, delivery, ts_ms, 2, own)

    def _of_delivery(
        self, kind: EventKind, delivery: Delivery, ts_ms: int, own_count: int, own: bytes
    ) -> bytes:
        about = b"".join(
            (
                own,
                _number(b"enq", delivery.created_at_ms),
                self._worker,
                _number(b"dc", delivery.earlier + 1),
            )
        )
        count = own_count + 3
        if delivery.due_ms is not None:
            about += _number(b"due", delivery.due_ms)
            count += 1
        return self._encode(kind, delivery.job_id, delivery.name, ts_ms, count, about)

    def _encode(
        self, kind: EventKind, job_id: str, name: str, ts_ms: int, count: int, about: bytes
    ) -> bytes:
        identity = bulk(job_id.encode()) + _number(b"ts", ts_ms)
        fields = 3 + count
        if name:
            identity += _field(b"n", name.encode())
            fields += 1
        return b"*%d\r\n%b%b%b" % (_HEAD_PARTS + 2 * fields, self._heads[kind], identity, about)


def _field(name: bytes, value: bytes) -> bytes:
    return b"$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(name), name, len(value), value)


def _number(name: bytes, value: int) -> bytes:
    return _field(name, b"%d" % value)


def _text(name: bytes, value: str) -> bytes:
    return _field(name, safe_text(value, REASON_CHARS_MAX).encode())
