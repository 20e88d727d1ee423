"""Ends or moves delivered jobs: writes a batch as script calls, sends them, reads the answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from chasquimq.errors import StoreError
from chasquimq.model.chunks import in_sized_chunks
from chasquimq.model.delivery import (
    Burying,
    Completing,
    Delivery,
    RejectedEntry,
    Retrying,
    SettleResult,
)
from chasquimq.store.net import script
from chasquimq.wire.envelope import changed_extras, encode_envelope, raw_extras
from chasquimq.wire.outcome import encode_completed, encode_dead
from chasquimq.wire.stream_entry import encode_dlq, encode_member

if TYPE_CHECKING:
    from chasquimq.settings import ResultSettings
    from chasquimq.store.net.connection import Part, Reply
    from chasquimq.store.net.reconnect import ReconnectingConnection
    from chasquimq.wire.keys import Lane, Lanes, QueueKeys

_MOVES_PER_CALL_MAX = 100
_MOVE_BYTES_PER_CALL_MAX = 1024 * 1024
_Move = TypeVar("_Move")


class SettleCalls:
    """Writes the moves of one consumer as calls of scripts, each for one lane."""

    def __init__(
        self,
        keys: QueueKeys,
        lanes: Lanes,
        group: str,
        consumer: str,
        results: ResultSettings,
    ) -> None:
        self._keys = keys
        self._lanes = lanes
        self._group = group
        self._consumer = consumer
        self._results = results

    def completions(
        self,
        moves: Sequence[Completing],
        finished_ms: int,
        *,
        has_ack_delete: bool,
        has_many_set: bool,
    ) -> list[Call]:
        ttls_s = (self._results.ttl_s, self._results.outcome_ttl_s)
        head = (self._group, *ttls_s, int(has_ack_delete), int(has_many_set))
        return [
            self._complete_call(lane, head, chunk, finished_ms)
            for lane, run in self._lanes.runs(moves)
            for chunk, _ in _chunks(run, lambda move: len(move.result or b""))
        ]

    def retries(self, moves: Sequence[Retrying]) -> list[Call]:
        return [call for lane, run in self._lanes.runs(moves) for call in self._retries(lane, run)]

    def burials(self, moves: Sequence[Burying]) -> list[Call]:
        if self._results.is_stored:
            return [self._bury_call(move) for move in moves]
        return [call for lane, run in self._lanes.runs(moves) for call in self._burials(lane, run)]

    def _retries(self, lane: Lane, moves: Sequence[Retrying]) -> Iterator[Call]:
        keys = (lane.stream, lane.delayed, lane.dix)
        rows = [_retry_row(move) for move in moves]
        # The last part is the job; the others are small.
        head, bell = (self._group, self._consumer), self._keys.bell
        for part, _ in _chunks(rows, lambda row: _size_bytes(row[-1])):
            yield Call(keys, [*head, *flat(part), bell], len(part))

    def _burials(self, lane: Lane, moves: Sequence[Burying]) -> Iterator[Call]:
        keys, head = (lane.stream, self._keys.dlq), (self._group, self._consumer, 0)
        rows = [_bury_row(move, b"") for move in moves]
        for part, _ in _chunks(rows, lambda row: sum(map(_size_bytes, row))):
            yield Call(keys, [*head, *flat(part)], len(part))

    def _complete_call(
        self, lane: Lane, head: Sequence[Part], moves: Sequence[Completing], finished_ms: int
    ) -> Call:
        deliveries = [move.delivery for move in moves]
        results = [move.result for move in moves]
        job_ids = [one.job_id for one in deliveries]
        entry_ids = [one.entry_id for one in deliveries]
        kept = [result or b"" for result in results]
        outcomes = _completed(deliveries, results, finished_ms)
        keys = self._keys
        return Call(
            [lane.stream, *map(keys.result, job_ids), *map(keys.outcome, job_ids)],
            [*head, *entry_ids, *kept, *outcomes],
            len(moves),
        )

    def _bury_call(self, move: Burying) -> Call:
        keys = (self._lanes[move.lane].stream, self._keys.dlq)
        head = (self._group, self._consumer)
        if isinstance(move.entry, RejectedEntry):
            return Call(keys, [*head, 0, *_bury_row(move, b"")], 1)
        error = move.failure.text if move.failure else ""
        outcome = encode_dead(move.reason, error, move.entry.name, move.attempt)
        args = [*head, self._results.outcome_ttl_s, *_bury_row(move, outcome)]
        return Call((*keys, self._keys.outcome(move.entry.job_id)), args, 1)


def flat(rows: Sequence[Sequence[Part]]) -> list[Part]:
    """The arguments of many rows, one after the other."""
    return [part for row in rows for part in row]


def _completed(
    deliveries: Sequence[Delivery], results: Sequence[bytes | None], finished_ms: int
) -> list[bytes]:
    """The outcomes of jobs that end together; alike ones are encoded once, and mostly all are."""
    names = {one.name for one in deliveries}
    spent = {one.spent + one.earlier for one in deliveries}
    nothing = {result is None for result in results}
    if len(names) == len(spent) == len(nothing) == 1:
        return [_completed_as(names.pop(), spent.pop(), nothing.pop(), finished_ms)] * len(results)
    kinds = [
        (one.name, one.spent + one.earlier, result is None)
        for one, result in zip(deliveries, results, strict=True)
    ]
    encoded = {kind: _completed_as(*kind, finished_ms) for kind in set(kinds)}
    return [encoded[kind] for kind in kinds]


def _completed_as(name: str, spent: int, is_none: bool, finished_ms: int) -> bytes:
    return encode_completed(name, spent + 1, finished_ms, has_result=not is_none)


def _retry_row(move: Retrying) -> list[Part]:
    delivery = move.delivery
    envelope = encode_envelope(
        delivery.job_id,
        delivery.payload,
        delivery.created_at_ms,
        move.spent,
        delivery.retry,
    )
    # What was behind the envelope and could not be read is left behind.
    extras = raw_extras(delivery.envelope) if delivery.extras else b""
    envelope += changed_extras(extras, move.changes) if move.changes else extras
    if move.is_at_once:
        return [delivery.entry_id, "now", delivery.name, envelope]
    member = encode_member(delivery.name, envelope)
    return [delivery.entry_id, move.after_ms, delivery.job_id, member]


def _bury_row(move: Burying, outcome: bytes) -> list[Part]:
    entry = move.entry
    is_broken = isinstance(entry, RejectedEntry)
    fields: list[Any] = encode_dlq(
        entry.body if is_broken else entry.envelope,
        entry.entry_id.decode(),
        move.reason,
        name=entry.name,
        detail=move.detail,
        attempt=move.attempt,
        error=move.failure.text if move.failure else "",
        fingerprint=move.fingerprint,
        traceback=move.traceback,
    )
    return [entry.entry_id, outcome, len(fields), *fields]


def _size_bytes(part: Part) -> int:
    return len(part) if isinstance(part, bytes) else 0


def _chunks(
    moves: Sequence[_Move], size_of: Callable[[_Move], int]
) -> Iterator[tuple[Sequence[_Move], int]]:
    return in_sized_chunks(moves, _MOVES_PER_CALL_MAX, _MOVE_BYTES_PER_CALL_MAX, size_of)


# A look-up takes a tenth of the time of the enum's own call.
_RESULTS = {result.value: result for result in SettleResult}


class Call(NamedTuple):
    """One script call, for so many moves."""

    keys: Sequence[str]
    args: Sequence[Part]
    move_count: int


class PartlySettled(StoreError):
    """Some calls of a write met an error: their moves, without a result here, are to be sent again.

    The others are answered for good; sent again they would only be found gone.
    """

    def __init__(self, error: StoreError, results: Sequence[SettleResult | None]) -> None:
        super().__init__(str(error))
        self.results = results


async def settle(
    reconnecting: ReconnectingConnection, name: str, calls: Sequence[Call]
) -> list[SettleResult]:
    """Call the script of this name in one write; answers what became of each move.

    Raises:
        PartlySettled: some calls were answered, and some met an error.
        StoreError: none was answered.
    """
    connection = await reconnecting.connection()
    replies = await script.run_many(connection, name, [(call.keys, call.args) for call in calls])
    return results_of(reconnecting, replies, [call.move_count for call in calls])


def results_of(
    reconnecting: ReconnectingConnection, replies: Sequence[Reply], counts: Sequence[int]
) -> list[SettleResult]:
    """What the replies to calls for so many moves say of each move; raises what `settle` raises."""
    errors = [reply for reply in replies if isinstance(reply, StoreError)]
    if not errors:
        return [_RESULTS[mark] for marks in replies for mark in marks]
    reconnecting.on_error(errors[0])
    if len(errors) == len(replies):
        raise errors[0]
    raise PartlySettled(errors[0], _known(replies, counts)) from errors[0]


def _known(replies: Sequence[Reply], counts: Sequence[int]) -> list[SettleResult | None]:
    results: list[SettleResult | None] = []
    for reply, count in zip(replies, counts, strict=True):
        is_answered = not isinstance(reply, StoreError)
        results += [_RESULTS[mark] for mark in reply] if is_answered else [None] * count
    return results
