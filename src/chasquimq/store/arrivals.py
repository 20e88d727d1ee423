"""Turns raw stream entries into deliveries; what is broken keeps its bytes and gets a reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from chasquimq.errors import DecodeError
from chasquimq.model.delivery import Arrival, Delivery
from chasquimq.model.reason import DlqReason
from chasquimq.wire.codec import split_envelope
from chasquimq.wire.stream_entry import read_fields, read_uint

if TYPE_CHECKING:
    from chasquimq.store.connection import Reply

_NAMES_MAX = 1_024


class Batch(msgspec.Struct, frozen=True):
    """What one read brought."""

    deliveries: list[Delivery]
    arrivals: list[Arrival]

    @property
    def size(self) -> int:
        return len(self.deliveries) + len(self.arrivals)


EMPTY = Batch([], [])


class ArrivalReader:
    """Decodes the entries of one stream."""

    def __init__(self, payload_bytes_max: int) -> None:
        self._payload_bytes_max = payload_bytes_max
        self._names: dict[bytes, str] = {}

    def read(self, entries: list[list[Any]], held_since_ns: int) -> Batch:
        """Sort entries of `[id, fields]` or `[id, fields, idle_ms, earlier]`."""
        deliveries: list[Delivery] = []
        arrivals: list[Arrival] = []
        for entry in entries:
            earlier = entry[3] if len(entry) > 3 else 0
            one = self._read_one(entry[0], entry[1], earlier, held_since_ns)
            if type(one) is Delivery:
                deliveries.append(one)
            else:
                arrivals.append(one)  # pyright: ignore[reportArgumentType]  it is one or the other
        return Batch(deliveries, arrivals)

    def _read_one(
        self, entry_id: bytes, fields: Reply, earlier: int, held_since_ns: int
    ) -> Delivery | Arrival:
        due_ms = None
        # What every producer and promoter writes, spelled out because it is read once per job.
        size = len(fields) if fields else 0
        if size == 4 and fields[0] == b"d" and fields[2] == b"n":
            body, name = fields[1], self._name(fields[3])
        elif size == 6 and fields[0] == b"d" and fields[2] == b"n" and fields[4] == b"due":
            body, name, due_ms = fields[1], self._name(fields[3]), read_uint(fields[5])
        elif size == 2 and fields[0] == b"d":
            body, name = fields[1], ""
        else:
            found = read_fields(fields)
            if found.payload is None:
                return Arrival(
                    entry_id, DlqReason.MALFORMED, "the entry has no field `d`", found.name, b""
                )
            body, name, due_ms = found.payload, found.name, found.due_ms
        if len(body) > self._payload_bytes_max:
            detail = f"{len(body)} bytes, at most {self._payload_bytes_max} are allowed"
            return Arrival(entry_id, DlqReason.OVERSIZE_PAYLOAD, detail, name, body)
        try:
            envelope, extras = split_envelope(body)
        except DecodeError as error:
            return Arrival(entry_id, DlqReason.DECODE_FAILED, str(error), name, body)
        return Delivery(
            entry_id,
            envelope.id,
            name,
            envelope.payload,
            envelope.created_at_ms,
            envelope.attempt,
            earlier,
            envelope.retry,
            extras,
            due_ms,
            body,
            True,
            False,
            False,
            held_since_ns,
        )

    def _name(self, raw: bytes) -> str:
        name = self._names.get(raw)
        if name is not None:
            return name
        name = raw.decode("utf-8", "replace") if _is_utf8(raw) else ""
        if len(self._names) < _NAMES_MAX:
            self._names[raw] = name
        return name


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True
