"""Reads, settles and requeues the jobs of one consumer; each call names the lane it is for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from chasquimq.errors import ServerRefused, StoreError
from chasquimq.model.chunks import in_chunks
from chasquimq.model.delivery import Burying, Completing, Retrying, SettleResult
from chasquimq.model.log import get_logger
from chasquimq.model.snapshot import SILENT_MS_MAX, GroupUse, group_conflict
from chasquimq.store.consumer.decode import EMPTY, PARKED_IDLE_MS, EntryDecoder, ReadBatch
from chasquimq.store.consumer.settle import SettleCalls, flat, results_of, settle
from chasquimq.store.net import script
from chasquimq.store.net.abilities import (
    RESULTS,
    WORKER,
    Abilities,
    Role,
    demand,
    has_many_set,
    many_set_question,
    probe,
)
from chasquimq.store.net.connection import ServerClock, pack
from chasquimq.store.net.reconnect import ReconnectingConnection
from chasquimq.wire.keys import Lane, Lanes, QueueKeys, check_group_name
from chasquimq.wire.stream_entry import read_text

if TYPE_CHECKING:
    from chasquimq.model.delivery import Count
    from chasquimq.settings import AbilitySettings, ConnectionSettings, ReadSettings, ResultSettings
    from chasquimq.store.net.connection import Connection, Part, Reply

logger = get_logger(__name__)

PARKING = "returned"
_IDS_PER_CALL_MAX = 1_000
# The stream of calls is out of reach, or is none.
_UNWAKEABLE = ("NOPERM", "WRONGTYPE")


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
        *,
        beside: Sequence[Role] = (),
        wished: Sequence[Role] = (),
        lanes: Sequence[Lane] = (),
    ) -> None:
        """`lanes` are read beside the queue's own stream."""
        # Upkeep, events and history use the connection for writes and need rights as well.
        self._roles = (WORKER, *((RESULTS,) if results.is_stored else ()), *beside)
        self._wished = wished
        self.keys = QueueKeys(queue)
        self.lanes = Lanes(self.keys, lanes)
        self.group = check_group_name(group)
        self.consumer = consumer
        self.clock = ServerClock()
        self.abilities = Abilities(ack_delete=False, claim_on_read=False, idempotent_add=False)
        self._keeps_results = results.is_stored
        self._has_many_set = False
        self._wanted = abilities
        self._lease_ms = lease_ms
        self._calls = SettleCalls(self.keys, self.lanes, self.group, consumer, results)
        self._decoder = EntryDecoder(read.max_payload_bytes)
        self._reads = ReconnectingConnection(
            connection, name="chasqui-reader", prepare=self._prepare_reads, waits_for_login=True
        )
        self._writes = ReconnectingConnection(
            connection, name="chasqui-worker", prepare=self._prepare_writes, waits_for_login=True
        )
        self._reader_client_id = 0
        # A connection broke, and may have taken along the answer that brought us jobs.
        self.has_gap = False
        # Whether reads can be woken, and whether the last one was: a producer wants an idle worker.
        self.can_be_woken = False
        self.was_woken = False
        # How often the group was gone, and was made again.
        self.regroup_count = 0

    @property
    def writes(self) -> ReconnectingConnection:
        return self._writes

    @property
    def is_up(self) -> bool:
        """Whether the server is reached, by readers and writers alike."""
        return self._reads.is_up and self._writes.is_up

    @property
    def is_refused(self) -> bool:
        """Whether the last dial of the connection that writes failed."""
        return self._writes.refusal is not None

    @property
    def can_write(self) -> bool:
        """Whether the connection that writes is open."""
        return self._writes.is_up

    @property
    def is_reading(self) -> bool:
        """Whether an answer to a read may still come."""
        return self._reads.is_up

    async def open(self) -> None:
        """Connect, check rights, probe the server and join the group; no other may be in use."""
        await self._writes.connection()
        await self._reads.connection()
        self.has_gap = False

    async def learn_time(self) -> None:
        """Ask the server what time it is."""
        await self.clock.learn(await self._writes.connection())

    async def close(self) -> None:
        await self._reads.close()
        await self._writes.close()

    async def read(
        self,
        count: int,
        block_ms: int,
        *,
        is_idle: bool = False,
        claims: bool = True,
        lane: int = 0,
    ) -> ReadBatch:
        """Up to `count` entries: new ones and, where the server can, what the dead left.

        A worker that is idle may block for long, because others can wake it.
        """
        if is_idle:
            return await self._read_idle(count, block_ms)
        streams = (self.lanes[lane].stream, ">")
        try:
            reply = await self._read(streams, count, block_ms, claims=claims)
        except ServerRefused as error:
            return await self._regroup(error)
        return self._decoder.read(reply[0][1], time.monotonic_ns(), lane) if reply else EMPTY

    async def claim(
        self, count: int, look_ms: int = 0, quiet_ms: int = 0, *, lane: int = 0
    ) -> tuple[ReadBatch, int]:
        """Take over what has been silent for a lease, where reading cannot do it.

        Also answers in how many ms the next look is due, from `look_ms` to `quiet_ms`. Another
        worker's look counts; with `quiet_ms=0` this one looks all the same.
        """
        # Lua cannot name more than some thousand ids at once; what is left comes next time.
        count = min(count, _IDS_PER_CALL_MAX)
        head = (self.group, self.consumer, self._lease_ms, count)
        try:
            entries, wait_ms = await self._run(
                self.lanes[lane].stream, "claim", *head, look_ms, quiet_ms, *self._calling_keys
            )
        except ServerRefused as error:
            return await self._regroup(error), look_ms
        batch = self._decoder.read(entries, time.monotonic_ns(), lane) if entries else EMPTY
        return batch, wait_ms

    async def silent_workers(self) -> list[str]:
        """The consumers that were silent for a lease; empty where the server may not be asked.

        A read that takes jobs over does not name their owners.
        """
        silent: list[str] = []
        with suppress(StoreError):
            for lane in self.lanes:
                rows = await self._writes.call("XINFO", "CONSUMERS", lane.stream, self.group)
                facts = [dict(zip(row[::2], row[1::2], strict=True)) for row in rows]
                late = [one for one in facts if one[b"idle"] >= self._lease_ms]
                silent += [read_text(one[b"name"]) for one in late]
        return [name for name in dict.fromkeys(silent) if name not in (PARKING, self.consumer)]

    async def wake_another(self) -> None:
        """Pass a call on that this worker has no room for."""
        entry = ("NOMKSTREAM", "MAXLEN", 16, "*", "for", "claim")
        with suppress(StoreError):
            await self._writes.call("XADD", self.keys.wake, *entry)

    async def join_group(self) -> None:
        """Create stream and group where they are missing; entries added before are seen.

        Raises:
            GroupConflict: another group consumes the stream.
        """
        connection = await self._writes.connection()
        await self._join_group(connection)

    async def ack(self, keys: Sequence[bytes]) -> list[SettleResult]:
        """Complete entries: at most a thousand, of any owner."""
        assert len(keys) <= _IDS_PER_CALL_MAX, "the acker keeps to the ceiling"
        if not self.lanes.is_single:
            return await self._ack_lanes(keys)
        if not self.abilities.ack_delete:
            marks = await self._run(self.lanes.main.stream, "ack", self.group, *keys)
        else:
            marks = await self._writes.call(*self._ack_delete(self.lanes.main, keys))
        if marks.count(1) == len(marks):
            return [SettleResult.DONE] * len(marks)
        return [_acked(mark) for mark in marks]

    async def _ack_lanes(self, keys: Sequence[bytes]) -> list[SettleResult]:
        """The same for entries of several lanes, in one write."""
        runs = list(self.lanes.runs_of_ids(keys))
        connection = await self._writes.connection()
        if self.abilities.ack_delete:
            commands = [pack(self._ack_delete(lane, entry_ids)) for lane, entry_ids in runs]
            replies = await connection.send(b"".join(commands), len(runs))
        else:
            calls = [([lane.stream], [self.group, *entry_ids]) for lane, entry_ids in runs]
            replies = await script.run_many(connection, "ack", calls)
        marks = [
            reply if isinstance(reply, StoreError) else [_acked(mark) for mark in reply]
            for reply in replies
        ]
        return results_of(self._writes, marks, [len(entry_ids) for _, entry_ids in runs])

    def _ack_delete(self, lane: Lane, entry_ids: Sequence[bytes]) -> tuple[Part, ...]:
        return ("XACKDEL", lane.stream, self.group, "IDS", len(entry_ids), *entry_ids)

    async def complete(self, moves: Sequence[Completing]) -> list[SettleResult]:
        """Complete entries and keep what their handlers returned, in one step."""
        calls = self._calls.completions(
            moves,
            int(self.clock.now_ms()),
            has_ack_delete=self.abilities.ack_delete,
            has_many_set=self._has_many_set,
        )
        return await settle(self._writes, "complete", calls)

    async def retry(self, moves: Sequence[Retrying]) -> list[SettleResult]:
        """Move failed deliveries to where they wait for their next run, as their owner."""
        return await settle(self._writes, "retry", self._calls.retries(moves))

    async def bury(self, moves: Sequence[Burying]) -> list[SettleResult]:
        """Move entries to the DLQ, as their owner; callers that wait for their results are notified."""
        return await settle(self._writes, "bury", self._calls.burials(moves))

    async def charge(self, counts: Sequence[Count]) -> list[bytes]:
        """Set delivery counts of held entries; answers the keys of those that are ours no more."""
        lost: list[bytes] = []
        for lane, chunk in self._chunks(counts):
            try:
                gone = await self._run(
                    lane.stream, "charge", self.group, self.consumer, *flat(chunk)
                )
            except ServerRefused as error:
                await self._regroup(error)
                gone = [entry_id for entry_id, _ in chunk]
            lost += map(lane.key, gone)
        return lost

    async def requeue(self, counts: Sequence[Count]) -> int:
        """Park entries that did not start: claimable at once, charged with the given counts."""
        done = 0
        head = (self.group, self.consumer, PARKING, PARKED_IDLE_MS, *self._calling_keys)
        for lane, chunk in self._chunks(counts):
            done += await self._run(lane.stream, "hand_back", *head, *flat(chunk))
        return done

    def _chunks(self, counts: Sequence[Count]) -> Iterator[tuple[Lane, Sequence[Count]]]:
        """The counts of each lane, as many as go into one call."""
        size = _IDS_PER_CALL_MAX // 2
        for lane, found in self.lanes.counts(counts):
            for some in in_chunks(found, size):
                yield lane, some

    async def pending(self) -> list[Count]:
        """What the server thinks this consumer holds: keys and delivery counts."""
        found: list[Count] = []
        for lane in self.lanes:
            rows = await self._writes.call(
                "XPENDING", lane.stream, self.group, "-", "+", 10_000, self.consumer
            )
            found += [(lane.key(row[0]), row[3]) for row in rows]
        return found

    async def unblock_reader(self) -> None:
        """End a blocking read early; its reply still arrives."""
        if self._reader_client_id and self.is_up:
            await self._writes.call("CLIENT", "UNBLOCK", self._reader_client_id)

    async def remove_consumer(self) -> bool:
        """Remove this consumer unless it still holds something."""
        with suppress(ServerRefused):  # a user that may not use the key was never there
            await self._run(self.keys.wake, "reap_consumer", self.group, self.consumer, 0)
        answers = [
            await self._run(lane.stream, "reap_consumer", self.group, self.consumer, 0)
            for lane in self.lanes
        ]
        return 0 not in answers

    async def remove_record(self) -> None:
        """Remove what this worker said of itself."""
        with suppress(ServerRefused):  # a user that may not use the key never wrote it
            await self._writes.call("DEL", self.keys.worker(self.consumer))

    async def _regroup(self, error: ServerRefused) -> ReadBatch:
        """Make a deleted group again: its jobs are gone, those to come need it."""
        if error.code != "NOGROUP":
            raise error
        await self.join_group()
        if self.keys.wake in str(error):
            return EMPTY  # no job was in there
        self.regroup_count += 1
        logger.warning(
            "consumer group %r of queue %r was deleted and has been made again: "
            "jobs that were deleted are lost, those still in the stream run",
            self.group,
            self.keys.queue,
        )
        return EMPTY

    @property
    def _calling_keys(self) -> tuple[str, str]:
        return self.keys.claim_gate(self.group), self.keys.wake

    async def _read_idle(self, count: int, block_ms: int) -> ReadBatch:
        stream = self.lanes.main.stream
        streams = (stream, self.keys.wake, ">", ">")
        try:
            reply = await self._read(streams, count, block_ms)
        except ServerRefused as error:
            if error.code not in _UNWAKEABLE:
                return await self._regroup(error)
            # A worker that cannot be woken reads as a busy one does, which shows what is wrong there.
            self.can_be_woken = False
            return EMPTY
        found = {name.decode(): rows for name, rows in reply or ()}
        if calls := found.get(self.keys.wake):
            await self._answer([call[0] for call in calls])
        entries = found.get(stream)
        return self._decoder.read(entries, time.monotonic_ns()) if entries else EMPTY

    async def _answer(self, call_ids: Sequence[bytes]) -> None:
        self.was_woken = True
        # Jobs may have come along, and a call that stays unanswered does no harm.
        with suppress(StoreError):
            await self._run(self.keys.wake, "ack", self.group, *call_ids)

    async def _read(
        self, streams: Sequence[str], count: int, block_ms: int, *, claims: bool = True
    ) -> Reply:
        claim = ("CLAIM", self._lease_ms) if claims and self.abilities.claim_on_read else ()
        block = ("BLOCK", block_ms) if block_ms else ()
        try:
            return await self._reads.call(
                "XREADGROUP", "GROUP", self.group, self.consumer, "COUNT", count,
                *block, *claim, "STREAMS", *streams, block_ms=block_ms,
            )  # fmt: skip
        except asyncio.CancelledError:
            # Its answer may bring jobs; the next connection asks for those that never arrived.
            await self._reads.hang_up()
            raise

    async def _run(self, stream: str, name: str, *args: Part) -> Reply:
        connection = await self._writes.connection()
        try:
            return await script.run(connection, name, [stream], *args)
        except StoreError as error:
            self._writes.on_error(error)
            raise

    async def _prepare_writes(self, connection: Connection) -> None:
        await demand(connection, self.keys, self._roles, self._wished)
        self.abilities = await probe(connection, self.keys, self._wanted)
        if self._keeps_results:
            replies = await connection.send(many_set_question(self.keys), 2)
            self._has_many_set = has_many_set(replies)
        await self.clock.learn(connection)
        await self._join_group(connection)
        self.has_gap = True

    async def _prepare_reads(self, connection: Connection) -> None:
        self._reader_client_id = await connection.call("CLIENT", "ID")
        self.has_gap = True

    async def _join_group(self, connection: Connection) -> None:
        args = (self.group, self.consumer, PARKING, SILENT_MS_MAX)
        for lane in self.lanes:
            others = await script.run(connection, "join_group", [lane.stream], *args)
            if others:
                raise group_conflict(self.keys.queue, self.group, _uses(others))
        create = ("XGROUP", "CREATE", self.keys.wake, self.group, "0", "MKSTREAM")
        (reply,) = await connection.send(pack(create))
        # Without it a worker reads as often as a busy one, and keeps all promises.
        is_there = isinstance(reply, ServerRefused) and reply.code == "BUSYGROUP"
        self.can_be_woken = is_there or not isinstance(reply, StoreError)


def _uses(others: Sequence[Reply]) -> list[GroupUse]:
    rows = zip(others[::3], others[1::3], others[2::3], strict=True)
    return [GroupUse(read_text(name), workers, pending) for name, workers, pending in rows]


def _acked(mark: int) -> SettleResult:
    return SettleResult.DONE if mark >= 1 else SettleResult.GONE
