"""Writes the attempts of a worker to the history stream, and holds it to a budget of bytes."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from chasquimq.errors import EncodeError, StoreError
from chasquimq.model.delivery import Delivery, Failure, RejectedEntry
from chasquimq.store.net import script
from chasquimq.store.net.connection import pack
from chasquimq.wire.history import AttemptOutcome
from chasquimq.wire.history_writer import HistoryBlock, encode_history
from chasquimq.wire.keys import QueueKeys

if TYPE_CHECKING:
    from chasquimq.model.delivery import Burying, Retrying
    from chasquimq.store.net.connection import ServerClock
    from chasquimq.store.net.reconnect import ReconnectingConnection

_WRITES_PER_LOOK = 64
# Under a small budget few writes are many bytes: look again after this share of it.
_BUDGET_SHARE_PER_LOOK = 16


class HistoryCap:
    """Knows when to ask the server for the size of the history, and what follows from it."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._writes = _WRITES_PER_LOOK
        self._written_bytes = 0
        self._entry_bytes = 0
        # Entries that the history may have; 0 while it is far from its budget.
        self.len_max = 0

    @property
    def is_look_due(self) -> bool:
        """True at the first write of a run, too: others may have filled the history before."""
        has_written_much = self._written_bytes * _BUDGET_SHARE_PER_LOOK >= self._bytes_max
        return self._writes >= _WRITES_PER_LOOK or has_written_much

    def wrote(self, size_bytes: int) -> None:
        self._writes += 1
        self._written_bytes += size_bytes
        self._entry_bytes = size_bytes

    def learn(self, size_bytes: int | None, length: int) -> None:
        """Take what the server measured; entries to come are taken to be like those there.

        Where it may not be asked (None), all entries are taken to be like our last one.
        """
        self._writes = self._written_bytes = 0
        if size_bytes is None:
            size_bytes = self._entry_bytes * length
        is_near = 2 * size_bytes > self._bytes_max
        self.len_max = max(1, length * self._bytes_max // size_bytes) if is_near else 0


_ROWS_PER_ENTRY = 1_000
# A server that is away for long costs rows, which are counted, not memory.
_ROWS_MAX = 20_000
# Longer than any outage that a worker sits out with an entry in its hands.
_MARKER_TTL_S = 24 * 3_600
# Nothing follows the last entry but a resend of itself.
_LAST_MARKER_TTL_S = 120
# Errors may be long, and no call should carry much more than a megabyte.
_FAILURES_PER_ENTRY = 200


class HistoryStore:
    """The attempts of one run of a worker: gathered at once, written when asked to."""

    def __init__(
        self,
        queue: str,
        worker: str,
        max_bytes: int,
        connection: ReconnectingConnection,
        clock: ServerClock,
    ) -> None:
        self._keys = QueueKeys(queue)
        self._worker = worker
        self._connection = connection
        self._clock = clock
        self._cap = HistoryCap(max_bytes)
        self._run = secrets.token_hex(6)
        self._is_ended = False
        self._full: deque[HistoryBlock] = deque()
        self._block = HistoryBlock()
        self._failure_count = 0
        self._seq = 0
        self._lost = 0
        # Packed and perhaps sent: it keeps its number until the server has answered.
        self._under_way: list[bytes] = []
        self._under_way_rows = 0
        self.dropped_count = 0

    @property
    def row_count(self) -> int:
        """Rows that are in no entry yet."""
        return sum(map(len, self._full)) + len(self._block)

    @property
    def is_full(self) -> bool:
        """Whether there are rows for a whole entry."""
        return self.row_count >= _ROWS_PER_ENTRY

    @property
    def is_untouched(self) -> bool:
        """Whether this run has nothing to say and has said nothing."""
        return not (self._seq or self._lost or self.row_count)

    def completed(self, deliveries: Sequence[Delivery]) -> None:
        """Jobs that are done."""
        if not self._has_room(len(deliveries)):
            return
        while deliveries:
            room = _ROWS_PER_ENTRY - len(self._block)
            self._add_completed(deliveries[:room])
            deliveries = deliveries[room:]

    def retried(self, moves: Sequence[Retrying]) -> None:
        """Attempts that failed and will be run again, and those that only wait."""
        for move in moves:
            outcome = AttemptOutcome.SNOOZED if move.is_snooze else AttemptOutcome.RETRIED
            self._add(move.delivery, outcome, move.failure, move.after_ms)

    def buried(self, moves: Sequence[Burying]) -> None:
        """Entries that went to the DLQ; those that never started were rejected."""
        for move in moves:
            started = isinstance(move.entry, Delivery) and move.entry.started_ns > 0
            outcome = AttemptOutcome.DEAD if started else AttemptOutcome.REJECTED
            self._add(move.entry, outcome, move.failure or Failure(move.reason, _detail(move)))

    def disputed(self, moves: Sequence[Any], *, is_unproven: bool) -> None:
        """Attempts whose outcome did not count, or perhaps did."""
        outcome = AttemptOutcome.UNPROVEN if is_unproven else AttemptOutcome.STALE
        for move in moves:
            entry = move if isinstance(move, Delivery) else move.entry
            self._add(entry, outcome, getattr(move, "failure", None))

    async def flush(self, *, is_last: bool = False) -> None:
        """Write what there is; what the server did not confirm is sent again by the next call.

        Raises:
            StoreError: the server did not take it; nothing is lost but by `_ROWS_MAX`.
        """
        if self._under_way:
            await self._write()
        if self._is_ended:
            return
        is_busy = self.is_full
        while self._full:
            await self._pack_and_write(self._full.popleft())
        # On a busy queue the rest is a whole entry soon.
        if is_last or (not is_busy and (len(self._block) or self._lost)):
            await self._pack_and_write(self._take_block(), is_last=is_last)

    def give_up(self) -> None:
        """Count rows that the server did not confirm as dropped; they will not be sent any more."""
        self._drop(self.row_count + self._under_way_rows)
        self._take_block()
        self._full.clear()
        self._under_way, self._under_way_rows = [], 0

    def _add_completed(self, batch: Sequence[Delivery]) -> None:
        block = self._block
        count = len(block) + len(batch)
        try:
            block.add_completed(batch, self._offset_us())
        except EncodeError:
            self._drop(count - len(block))
        self._seal_when_full()

    def _add(
        self,
        entry: Delivery | RejectedEntry,
        outcome: AttemptOutcome,
        failure: Failure | None,
        backoff_ms: int = 0,
    ) -> None:
        if not self._has_room(1):
            return
        rows = self._block.rows
        if isinstance(entry, RejectedEntry):
            rows.add_rejected(entry, failure)
        else:
            rows.add(entry, outcome, self._offset_us(), backoff_ms=backoff_ms, failure=failure)
        self._failure_count += failure is not None
        self._seal_when_full()

    def _seal_when_full(self) -> None:
        """Begin a new entry where this one has its rows, or all the errors that fit into one."""
        has_all_errors = self._failure_count >= _FAILURES_PER_ENTRY
        if has_all_errors or len(self._block) >= _ROWS_PER_ENTRY:
            self._full.append(self._take_block())

    def _take_block(self) -> HistoryBlock:
        block, self._block, self._failure_count = self._block, HistoryBlock(), 0
        return block

    def _has_room(self, count: int) -> bool:
        if self.row_count + count <= _ROWS_MAX:
            return True
        self._drop(count)
        return False

    def _drop(self, count: int) -> None:
        self._lost += count
        self.dropped_count += count

    async def _pack_and_write(self, block: HistoryBlock, *, is_last: bool = False) -> None:
        self._seq += 1
        self._is_ended = is_last
        count = len(block)
        try:
            self._under_way = self._encode_block(block, is_last=is_last)
        except EncodeError:
            self._drop(count - len(block))
            self._under_way = self._encode_block(block, is_last=is_last)
        self._lost, self._under_way_rows = 0, len(block)
        await self._write()

    def _encode_block(self, block: HistoryBlock, *, is_last: bool) -> list[bytes]:
        return encode_history(
            block,
            worker=self._worker, run=self._run, seq=self._seq, lost=self._lost, is_last=is_last,
        )  # fmt: skip

    async def _write(self) -> None:
        connection = await self._connection.connection()
        keys = [self._keys.history, self._keys.token(f"history:{self._run}")]
        ttl_s = _LAST_MARKER_TTL_S if self._is_ended else _MARKER_TTL_S
        args = (self._seq, self._cap.len_max, ttl_s, *self._under_way)
        try:
            await script.run(connection, "record", keys, *args)
        except StoreError as error:
            self._connection.on_error(error)
            raise
        self._cap.wrote(sum(map(len, self._under_way)))
        self._under_way, self._under_way_rows = [], 0
        if self._cap.is_look_due:
            await self._look()

    async def _look(self) -> None:
        key = self._keys.history
        memory = pack(("MEMORY", "USAGE", key, "SAMPLES", 0))
        size_bytes, length = await self._connection.ask(memory + pack(("XLEN", key)), 2)
        if isinstance(length, int):
            self._cap.learn(size_bytes if isinstance(size_bytes, int) else None, length)

    def _offset_us(self) -> int:
        """The server's clock minus our monotonic one."""
        return int(self._clock.at_ms(0) * 1_000)


def _detail(move: Burying) -> str:
    return move.entry.detail if isinstance(move.entry, RejectedEntry) else ""
