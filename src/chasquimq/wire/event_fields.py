"""One line of the events stream: a typed event and its flat list of fields and values."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from chasquimq.errors import DecodeError
from chasquimq.wire.stream_entry import first_values, read_text, read_uint, safe_text

REASON_CHARS_MAX = 512


class EventKind(StrEnum):
    """The events we write; readers pass on kinds they do not know."""

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


# Field on the wire and attribute here, in the order of writing: the original's, then ours.
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
    """Spell an event; an empty name is left out, the id never is."""
    fields = ["e", event.kind, "id", event.job_id, "ts", str(event.ts_ms)]
    if event.name:
        fields += ("n", event.name)
    for field, attribute in _OPTIONAL_FIELDS:
        value: str | int | None = getattr(event, attribute)
        if value is not None:
            fields += (field, _spell(value))
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
        # Evaluated last: what nobody took, numbers that are none included.
        rest={read_text(field): read_text(raw) for field, raw in found.items()},
    )


def ended_job_id(fields: Sequence[bytes]) -> str | None:
    """Which job an event says has ended, for those who read many and want to know no more."""
    # Every writer begins with these two fields.
    match fields:
        case [b"e", b"completed" | b"dlq", b"id", job_id, *_]:
            return read_text(job_id)
        case _:
            return None


def _spell(value: str | int) -> str:
    return safe_text(value, REASON_CHARS_MAX) if isinstance(value, str) else str(value)


def _take_text(found: dict[bytes, bytes], field: bytes) -> str | None:
    raw = found.pop(field, None)
    return None if raw is None else read_text(raw)


def _take_uint(found: dict[bytes, bytes], field: bytes) -> int | None:
    number = read_uint(found.get(field))
    if number is not None:
        del found[field]
    return number
