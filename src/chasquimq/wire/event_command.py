"""Events as XADD commands, byte by byte: two of them follow nearly every job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from chasquimq.wire.event_fields import REASON_CHARS_MAX, EventKind
from chasquimq.wire.event_template import (
    DIGIT_MAX,
    MS_END,
    MS_MIN,
    active_template,
    completed_template,
)
from chasquimq.wire.resp import bulk, command
from chasquimq.wire.stream_entry import safe_text

if TYPE_CHECKING:
    from chasquimq.model.delivery import Delivery
    from chasquimq.model.outcome import Burying, Retrying
    from chasquimq.model.verdict import Failure

# XADD, key, *
_HEAD_PARTS = 3
_NS_PER_MS = 1_000_000
_MS_PER_DECADE = 10 * 365 * 86_400_000


class EventSpeller:
    """Spells the events of one worker, or one producer, on one queue."""

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
        return self._spell(EventKind.DLQ, job_id, move.entry.name, ts_ms, 3, own + self._worker)

    def delayed(
        self, job_id: str, name: str, ts_ms: int, delay_ms: int, due_ms: int | None
    ) -> bytes:
        """The due time is told where the caller named it; else the server's clock makes it."""
        own, count = _number(b"delay_ms", delay_ms), 1
        if due_ms is not None:
            own, count = own + _number(b"due", due_ms), 2
        return self._spell(EventKind.DELAYED, job_id, name, ts_ms, count, own)

    def drained(self, ts_ms: int) -> bytes:
        return self._spell(EventKind.DRAINED, "", "", ts_ms, 1, self._worker)

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
        return self._spell(kind, delivery.job_id, delivery.name, ts_ms, count, about)

    def _spell(
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
