"""Decodes the entries of a stream; what cannot be decoded keeps its bytes and the reason.

It also carries the payload codec for the engine, which may not read the wire itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from chasquimq.errors import DecodeError
from chasquimq.model.delivery import Delivery, DlqReason, RejectedEntry, TakenOver
from chasquimq.wire.envelope import split_envelope
from chasquimq.wire.payload import decode_payload as decode
from chasquimq.wire.payload import encode_payload as encode
from chasquimq.wire.stream_entry import read_fields, read_text, read_uint

__all__ = ["decode", "encode", "encode_result"]


def encode_result(value: Any) -> bytes:
    """Encode what a handler returned; an error names the result."""
    return encode(value, root="result")


# Longer than any lease: whatever was handed back is parked as if it had been silent for so long.
PARKED_IDLE_MS = 365 * 24 * 3_600_000
_NAMES_MAX = 1_024


class ReadBatch(msgspec.Struct, frozen=True):
    """What one read of one lane brought.

    `is_plain`: every delivery is a first one that nothing forbids to start. `taken_over` are those
    that another consumer had stopped renewing, and did not hand back.
    """

    deliveries: list[Delivery]
    rejected: list[RejectedEntry]
    is_plain: bool = True
    taken_over: Sequence[TakenOver] = ()

    @property
    def size(self) -> int:
        return len(self.deliveries) + len(self.rejected)


EMPTY = ReadBatch([], [])


class EntryDecoder:
    """Decodes the entries that one consumer reads."""

    def __init__(self, payload_bytes_max: int) -> None:
        self._payload_bytes_max = payload_bytes_max
        self._names: dict[bytes, str] = {}
        # Jobs that were promoted together were mostly due together.
        self._raw_due = b""
        self._due_ms: int | None = None

    def read(self, entries: list[list[Any]], held_since_ns: int, lane: int = 0) -> ReadBatch:
        """Sort entries of `[id, fields]` or `[id, fields, idle_ms, earlier]`, perhaps with an owner."""
        deliveries: list[Delivery] = []
        rejected: list[RejectedEntry] = []
        is_plain = True
        for entry in entries:
            try:
                delivery = self._deliver(entry, held_since_ns)
            except _Undecodable as error:
                rejected.append(error.entry)
                continue
            deliveries.append(delivery)
            retry = delivery.retry
            has_no_attempts = retry is not None and retry.max_attempts == 0
            if delivery.earlier or delivery.spent or delivery.extras or has_no_attempts:
                is_plain = False
        # A read brings what it claims before what is new.
        has_claimed = bool(entries) and len(entries[0]) > 3 and entries[0][2] > 0
        batch = ReadBatch(
            deliveries, rejected, is_plain, _taken_over(entries) if has_claimed else ()
        )
        return batch if lane == 0 else _in_lane(lane, batch)

    def _deliver(self, entry: list[Any], held_since_ns: int) -> Delivery:
        fields: list[bytes] = entry[1] or []
        due_ms = None
        # What producers and promoters write, written out because it is read once per job.
        if len(fields) == 4 and fields[0] == b"d" and fields[2] == b"n":
            body, raw_name = fields[1], fields[3]
            name = self._names.get(raw_name)
            if name is None:
                name = self._learn(raw_name)
        elif len(fields) == 6 and fields[0] == b"d" and fields[2] == b"n" and fields[4] == b"due":
            body, raw_name, raw_due = fields[1], fields[3], fields[5]
            name = self._names.get(raw_name)
            if name is None:
                name = self._learn(raw_name)
            due_ms = self._due_ms if raw_due == self._raw_due else self._learn_due(raw_due)
        else:
            body, name, due_ms = self._other_fields(entry[0], fields)
        if len(body) > self._payload_bytes_max:
            detail = f"{len(body)} bytes, at most {self._payload_bytes_max} are allowed"
            raise _Undecodable(
                RejectedEntry(entry[0], DlqReason.OVERSIZE_PAYLOAD, detail, name, body)
            )
        try:
            envelope, extras = split_envelope(body)
        except DecodeError as error:
            refused = RejectedEntry(entry[0], DlqReason.DECODE_FAILED, str(error), name, body)
            raise _Undecodable(refused) from error
        return Delivery(
            entry[0],
            envelope.id,
            name,
            envelope.payload,
            envelope.created_at_ms,
            envelope.attempt,
            entry[3] if len(entry) > 3 else 0,
            envelope.retry,
            extras,
            due_ms,
            body,
            True,
            False,
            False,
            held_since_ns,
        )

    def _other_fields(self, entry_id: bytes, fields: list[bytes]) -> tuple[bytes, str, int | None]:
        found = read_fields(fields)
        if found.payload is None:
            detail = "the entry has no field `d`"
            raise _Undecodable(
                RejectedEntry(entry_id, DlqReason.MALFORMED, detail, found.name, b"")
            )
        return found.payload, found.name, found.due_ms

    def _learn_due(self, raw: bytes) -> int | None:
        self._raw_due, self._due_ms = raw, read_uint(raw)
        return self._due_ms

    def _learn(self, raw: bytes) -> str:
        name = raw.decode() if _is_utf8(raw) else ""
        if len(self._names) < _NAMES_MAX:
            self._names[raw] = name
        return name


def _taken_over(entries: Sequence[list[Any]]) -> list[TakenOver]:
    return [
        TakenOver(entry[0], entry[2], read_text(entry[4]) if len(entry) > 4 else "")
        for entry in entries
        if 0 < entry[2] < PARKED_IDLE_MS
    ]


def _in_lane(lane: int, batch: ReadBatch) -> ReadBatch:
    """The same batch, read from another lane than the queue's own stream."""
    for delivery in batch.deliveries:
        delivery.lane = lane
    return msgspec.structs.replace(
        batch,
        rejected=[msgspec.structs.replace(one, lane=lane) for one in batch.rejected],
        taken_over=[msgspec.structs.replace(one, lane=lane) for one in batch.taken_over],
    )


class _Undecodable(Exception):
    def __init__(self, entry: RejectedEntry) -> None:
        super().__init__(entry.detail)
        self.entry = entry


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True
