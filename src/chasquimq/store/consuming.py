"""The consuming side of one queue: read, complete, fail, give back."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from chasquimq.errors import ServerOutOfMemory, ServerRefused, StoreError
from chasquimq.model.delivery import Arrival
from chasquimq.model.outcome import Burying, Completing, Door, Retrying
from chasquimq.store import script
from chasquimq.store.abilities import Abilities, probe
from chasquimq.store.arrivals import EMPTY, ArrivalReader, Batch
from chasquimq.store.link import Link
from chasquimq.store.passing import Call, pass_moves
from chasquimq.store.server_clock import ServerClock
from chasquimq.wire.codec import encode_envelope
from chasquimq.wire.delayed_member import encode_member
from chasquimq.wire.keys import QueueKeys
from chasquimq.wire.names import check_group_name
from chasquimq.wire.outcome import COMPLETED_WITH_RESULT, COMPLETED_WITHOUT_RESULT, encode_dead
from chasquimq.wire.stream_entry import encode_dlq

if TYPE_CHECKING:
    from chasquimq.settings import (
        AbilitySettings,
        ConnectionSettings,
        ReadSettings,
        ResultSettings,
    )
    from chasquimq.store.connection import Connection, Part, Reply

PARKING = "returned"
# Longer than any lease, so that whatever is parked can be claimed at once.
_PARKED_IDLE_MS = 365 * 24 * 3_600_000
_IDS_PER_CALL_MAX = 1_000
_MOVES_PER_CALL_MAX = 100
_MOVE_BYTES_PER_CALL_MAX = 1024 * 1024


class ConsumerStore:
    """One consumer of one group; blocking reads have a connection of their own."""

    def __init__(
        self,
        queue: str,
        group: str,
        consumer: str,
        connection: ConnectionSettings,
        read: ReadSettings,
        abilities: AbilitySettings,
        lease_ms: int,
        results: ResultSettings,
    ) -> None:
        self.keys = QueueKeys(queue)
        self.group = check_group_name(group)
        self.consumer = consumer
        self.clock = ServerClock()
        self.abilities = Abilities(ack_delete=False, claim_on_read=False, idempotent_add=False)
        self._wanted = abilities
        self._lease_ms = lease_ms
        self._results = results
        self._arrivals = ArrivalReader(read.max_payload_bytes)
        self._reads = Link(connection, name="chasqui-reader", prepare=self._prepare_reads)
        self._writes = Link(connection, name="chasqui-worker", prepare=self._prepare_writes)
        self._reader_client_id = 0
        # A connection broke, and may have taken along the answer that brought us jobs.
        self.has_gap = False

    @property
    def writes(self) -> Link:
        return self._writes

    @property
    def is_up(self) -> bool:
        """Whether the server is reached, by readers and writers alike."""
        return self._reads.is_up and self._writes.is_up

    @property
    def is_reading(self) -> bool:
        """Whether an answer to a read may still come."""
        return self._reads.is_up

    async def open(self) -> None:
        """Connect, probe the server and make sure that the group exists."""
        await self._writes.connection()
        await self._reads.connection()
        self.has_gap = False

    async def learn_time(self) -> None:
        """Ask the server what time it is."""
        await self.clock.learn(await self._writes.connection())

    async def close(self) -> None:
        await self._reads.close()
        await self._writes.close()

    async def read(self, count: int, block_ms: int) -> Batch:
        """Up to `count` entries: new ones and, where the server can, what the dead left."""
        claim = ("CLAIM", self._lease_ms) if self.abilities.claim_on_read else ()
        block = ("BLOCK", block_ms) if block_ms else ()
        try:
            reply = await self._reads.call(
                "XREADGROUP", "GROUP", self.group, self.consumer, "COUNT", count,
                *block, *claim, "STREAMS", self.keys.stream, ">", block_ms=block_ms,
            )  # fmt: skip
        except ServerRefused as error:
            return await self._regroup(error)
        return self._arrivals.read(reply[0][1], time.monotonic_ns()) if reply else EMPTY

    async def claim(self, count: int) -> Batch:
        """Take over what has been silent for a lease, where reading cannot do it."""
        # Lua cannot name more than some thousand ids at once; what is left comes next time.
        count = min(count, _IDS_PER_CALL_MAX)
        try:
            entries = await self._run("claim", self.group, self.consumer, self._lease_ms, count)
        except ServerRefused as error:
            return await self._regroup(error)
        return self._arrivals.read(entries, time.monotonic_ns()) if entries else EMPTY

    async def create_group(self) -> None:
        """Create stream and group; entries added before it are seen."""
        connection = await self._writes.connection()
        await self._create_group(connection)

    async def ack(self, entry_ids: Sequence[bytes]) -> list[Door]:
        """Complete entries: at most a thousand, whoever owns them."""
        assert len(entry_ids) <= _IDS_PER_CALL_MAX, "the acker keeps to the ceiling"
        if not self.abilities.ack_delete:
            marks = await self._run("ack", self.group, *entry_ids)
        else:
            marks = await self._writes.call(
                "XACKDEL", self.keys.stream, self.group, "IDS", len(entry_ids), *entry_ids
            )
        if marks.count(1) == len(marks):
            return [Door.DONE] * len(marks)
        return [Door.DONE if mark >= 1 else Door.GONE for mark in marks]

    async def complete(self, moves: Sequence[Completing]) -> list[Door]:
        """Complete entries and keep what their handlers returned, in one step."""
        calls = [self._complete_call(chunk) for chunk in _result_chunks(moves)]
        return await pass_moves(self._writes, "complete", calls)

    async def retry(self, moves: Sequence[Retrying]) -> list[Door]:
        """Move failed deliveries to the delayed set, as their owner."""
        keys = (self.keys.stream, self.keys.delayed, self.keys.dix)
        spelled = [_spell_retry(move) for move in moves]
        head = (self.group, self.consumer)
        calls = [Call(keys, [*head, *_flat(rows)], len(rows)) for rows in _by_bytes(spelled)]
        return await pass_moves(self._writes, "retry", calls)

    async def bury(self, moves: Sequence[Burying]) -> list[Door]:
        """Move entries to the DLQ, as their owner; who waits for their results is told."""
        if self._results.is_stored:
            calls = [self._bury_call(move) for move in moves]
            return await pass_moves(self._writes, "bury", calls)
        keys, head = (self.keys.stream, self.keys.dlq), (self.group, self.consumer, 0)
        spelled = [_spell_bury(move) for move in moves]
        calls = [Call(keys, [*head, *_flat(rows)], len(rows)) for rows in _by_bytes(spelled)]
        return await pass_moves(self._writes, "bury", calls)

    async def charge(self, counts: Sequence[tuple[bytes, int]]) -> list[bytes]:
        """Set delivery counts of held entries; answers the ids that are ours no more."""
        lost: list[bytes] = []
        for chunk in _chunks(counts, _IDS_PER_CALL_MAX // 2):
            try:
                lost += await self._run("charge", self.group, self.consumer, *_flat(chunk))
            except ServerRefused as error:
                await self._regroup(error)
                lost += [entry_id for entry_id, _ in chunk]
        return lost

    async def hand_back(self, counts: Sequence[tuple[bytes, int]]) -> int:
        """Park entries that did not start: claimable at once, charged with the given counts."""
        done = 0
        head = (self.group, self.consumer, PARKING, _PARKED_IDLE_MS)
        for chunk in _chunks(counts, _IDS_PER_CALL_MAX // 2):
            done += await self._run("hand_back", *head, *_flat(chunk))
        return done

    async def pending(self) -> list[tuple[bytes, int]]:
        """What the server thinks this consumer holds: entry ids and delivery counts."""
        rows = await self._writes.call(
            "XPENDING", self.keys.stream, self.group, "-", "+", 10_000, self.consumer
        )
        return [(row[0], row[3]) for row in rows]

    async def unblock_reader(self) -> None:
        """End a blocking read early; its reply still arrives."""
        if self._reader_client_id and self.is_up:
            await self._writes.call("CLIENT", "UNBLOCK", self._reader_client_id)

    async def remove_consumer(self) -> bool:
        """Remove this consumer unless it still holds something."""
        return await self._run("reap_consumer", self.group, self.consumer, 0) != 0

    async def _regroup(self, error: ServerRefused) -> Batch:
        """Whoever deleted the group deleted its jobs; those to come need it again."""
        if error.code != "NOGROUP":
            raise error
        await self.create_group()
        return EMPTY

    async def _run(self, name: str, *args: Part) -> Reply:
        connection = await self._writes.connection()
        try:
            return await script.run(connection, name, [self.keys.stream], *args)
        except StoreError as error:
            self._writes.heed(error)
            raise

    def _bury_call(self, move: Burying) -> Call:
        keys, head = (self.keys.stream, self.keys.dlq), (self.group, self.consumer)
        if isinstance(move.entry, Arrival):
            return Call(keys, [*head, 0, *_spell_bury(move)], 1)
        outcome = self.keys.outcome(move.entry.job_id)
        args = [*head, self._results.outcome_ttl_s, *_spell_bury(move)]
        return Call((*keys, outcome), args, 1)

    def _complete_call(self, moves: Sequence[Completing]) -> Call:
        keys: list[str] = [self.keys.stream]
        args: list[Part] = [self.group, self._results.ttl_s, self._results.outcome_ttl_s]
        for move in moves:
            job_id = move.delivery.job_id
            keys += (self.keys.result(job_id), self.keys.outcome(job_id))
            outcome = COMPLETED_WITHOUT_RESULT if move.result is None else COMPLETED_WITH_RESULT
            args += (move.entry_id, move.result or b"", outcome)
        return Call(keys, args, len(moves))

    async def _prepare_writes(self, connection: Connection) -> None:
        self.abilities = await probe(connection, self.keys, self._wanted)
        await self.clock.learn(connection)
        await self._create_group(connection)
        self.has_gap = True

    async def _prepare_reads(self, connection: Connection) -> None:
        self._reader_client_id = await connection.call("CLIENT", "ID")
        self.has_gap = True

    async def _create_group(self, connection: Connection) -> None:
        try:
            await connection.call("XGROUP", "CREATE", self.keys.stream, self.group, "0", "MKSTREAM")
        except ServerRefused as error:
            if error.code != "BUSYGROUP":
                raise
        except ServerOutOfMemory:
            # What runs must be acked all the same, and with the group there it can be.
            if not await self._has_group(connection):
                raise

    async def _has_group(self, connection: Connection) -> bool:
        try:
            groups = await connection.call("XINFO", "GROUPS", self.keys.stream)
        except ServerRefused:
            return False  # there is no stream
        return self.group.encode() in [row[1] for row in groups]


def _spell_retry(move: Retrying) -> list[Part]:
    delivery = move.delivery
    envelope = encode_envelope(
        delivery.job_id,
        delivery.payload,
        delivery.created_at_ms,
        move.spent,
        delivery.retry,
        move.extras,
    )
    member = encode_member(delivery.name, envelope)
    return [delivery.entry_id, move.after_ms, delivery.job_id, member]


def _spell_bury(move: Burying) -> list[Part]:
    entry = move.entry
    is_broken = isinstance(entry, Arrival)
    fields: list[Any] = encode_dlq(
        entry.body if is_broken else entry.envelope,
        entry.entry_id.decode(),
        move.reason,
        name=entry.name,
        detail=entry.detail if is_broken else None,
        attempt=move.attempt,
        error=move.failure.text if move.failure else "",
        fingerprint=move.failure.fingerprint if move.failure else "",
    )
    outcome = encode_dead(move.reason, move.failure.text if move.failure else "")
    return [entry.entry_id, outcome, len(fields), *fields]


def _result_chunks(moves: Sequence[Completing]) -> Iterator[Sequence[Completing]]:
    start = size = 0
    for at, move in enumerate(moves):
        size += len(move.result or b"")
        is_full = at - start == _MOVES_PER_CALL_MAX or size > _MOVE_BYTES_PER_CALL_MAX
        if at > start and is_full:
            yield moves[start:at]
            start, size = at, len(move.result or b"")
    yield moves[start:]


def _by_bytes(moves: list[list[Part]]) -> Iterator[list[list[Part]]]:
    chunk: list[list[Part]] = []
    size = 0
    for move in moves:
        move_bytes = sum(len(part) for part in move if isinstance(part, bytes))
        is_full = len(chunk) == _MOVES_PER_CALL_MAX or size + move_bytes > _MOVE_BYTES_PER_CALL_MAX
        if chunk and is_full:
            yield chunk
            chunk, size = [], 0
        chunk.append(move)
        size += move_bytes
    if chunk:
        yield chunk


def _chunks(rows: Sequence[tuple[bytes, int]], size: int) -> Iterator[Sequence[tuple[bytes, int]]]:
    for at in range(0, len(rows), size):
        yield rows[at : at + size]


def _flat(rows: Sequence[Sequence[Part]]) -> list[Part]:
    return [part for row in rows for part in row]
