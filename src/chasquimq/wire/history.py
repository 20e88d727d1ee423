"""One entry of the history stream: many finished attempts of one worker, packed in columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from chasquimq.errors import DecodeError
from chasquimq.wire.history_columns import HistoryColumns, read_columns
from chasquimq.wire.stream_entry import first_values, read_text, read_uint

if TYPE_CHECKING:
    from chasquimq.model.attempt_row import AttemptRow
    from chasquimq.wire.history_block import HistoryBlock

VERSION = 1
ATTEMPTS = "attempts"


class HistoryEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry as read; `columns` is None where its version or kind is not known here.

    `seq` counts the entries of a run of a worker, so that a gap is a measured loss. `lost` rows
    were given up before this entry. A run whose last entry has no `is_last` has an open end.
    """

    version: int
    worker: str
    run: str
    seq: int
    is_last: bool
    kind: str
    row_count: int
    lost: int
    columns: HistoryColumns | None = None

    def rows(self) -> list[AttemptRow]:
        """The attempts, one by one."""
        return [] if self.columns is None else list(self.columns.rows())


def encode_history(
    block: HistoryBlock,
    *,
    worker: str,
    run: str,
    seq: int,
    lost: int = 0,
    is_last: bool = False,
) -> list[bytes]:
    """Spell an entry as a flat list of fields and values; no rows at all may still say the end.

    Raises:
        EncodeError: a number does not fit into 64 bits; the rows beside it are no longer there.
    """
    packed = block.pack()
    fields = [b"v", b"%d" % VERSION, b"w", worker.encode(), b"r", run.encode(), b"s", b"%d" % seq]
    if is_last:
        fields += (b"end", b"1")
    fields += (b"t", ATTEMPTS.encode(), b"n", b"%d" % len(block))
    if lost > 0:
        fields += (b"lost", b"%d" % lost)
    fields += (b"b", packed)
    return fields


def decode_history(fields: Sequence[bytes]) -> HistoryEntry:
    """Read an entry of this version or a later one; unknown fields and columns are let be.

    Raises:
        DecodeError: the entry is not of the history, or its rows cannot be read.
    """
    found = first_values(fields)
    entry = HistoryEntry(
        version=_number(found, b"v"),
        worker=_text(found, b"w"),
        run=_text(found, b"r"),
        seq=_number(found, b"s"),
        is_last=found.get(b"end") == b"1",
        kind=_text(found, b"t"),
        row_count=_number(found, b"n"),
        lost=read_uint(found.get(b"lost")) or 0,
    )
    if entry.version != VERSION or entry.kind != ATTEMPTS:
        return entry
    columns = read_columns(found.get(b"b", b""))
    if len(columns) != entry.row_count:
        raise DecodeError(f"a history entry must have {entry.row_count} rows, got {len(columns)}")
    return msgspec.structs.replace(entry, columns=columns)


def _number(found: dict[bytes, bytes], field: bytes) -> int:
    number = read_uint(found.get(field))
    if number is None:
        raise DecodeError(f"a history entry must have a number in {field.decode()}")
    return number


def _text(found: dict[bytes, bytes], field: bytes) -> str:
    if field not in found:
        raise DecodeError(f"a history entry must have a field {field.decode()}")
    return read_text(found[field])
