"""Stores repeating jobs: reads those that are due, fires them, and adds, lists and removes specs."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from chasquimq.errors import DecodeError, ServerRefused, StoreError
from chasquimq.model.chunks import in_chunks
from chasquimq.model.schedule import INSTANT_MS_MAX, MissedFires, Pattern
from chasquimq.store.net import script
from chasquimq.store.net.connection import Reply, pack
from chasquimq.store.net.script import REQUEST_TTL_S
from chasquimq.store.upkeep import Lead, read_lead
from chasquimq.wire.keys import QueueKeys
from chasquimq.wire.new_job import stable_job_id
from chasquimq.wire.repeat import (
    BadRecord,
    RepeatSpec,
    StoredRepeat,
    decode_record,
    decode_spec,
    encode_record,
    read_stored,
)

if TYPE_CHECKING:
    from chasquimq.model.schedule import Plan
    from chasquimq.store.inspect.pages import ReadStore
    from chasquimq.store.net.connection import Part
    from chasquimq.store.net.reconnect import Deadline, ReconnectingConnection
    from chasquimq.store.producer.store import ProducerStore
    from chasquimq.wire.repeat import NewRepeat

# A spec may carry a payload of a mebibyte, so this many at a time are enough.
SPECS_PER_READ_MAX = 16


class Slot(msgspec.Struct, frozen=True):
    """A member of the repeat set and its score, as the server writes them."""

    member: bytes
    score: bytes

    @property
    def at_ms(self) -> float:
        return float(self.score)

    @property
    def key(self) -> str | None:
        """The spec key; None where the member is no text."""
        try:
            return self.member.decode()
        except UnicodeDecodeError:
            return None


class Agenda(msgspec.Struct, frozen=True):
    """Which specs have come by the server's clock, and when the next one will."""

    now_ms: int
    due: list[Slot]
    next_ms: float

    def pages(self) -> Iterator[list[Slot]]:
        """The due ones, as many at a time as may be read together."""
        yield from map(list, in_chunks(self.due, SPECS_PER_READ_MAX))


class DueSpec(msgspec.Struct, frozen=True):
    """A spec whose window has come."""

    key: str
    score: bytes
    stored: StoredRepeat

    @property
    def due_ms(self) -> int:
        return int(float(self.score))

    @property
    def pattern(self) -> Pattern:
        return self.stored.pattern

    @property
    def policy(self) -> MissedFires:
        return self.stored.policy

    @property
    def end_before_ms(self) -> int | None:
        return self.stored.spec.end_before_ms

    @property
    def fires_left(self) -> int | None:
        """How many more jobs its limit allows; None: no limit."""
        limit = self.stored.spec.limit
        # ChasquiMQ (Rust) takes a limit of 0, and means none by it.
        return max(0, limit - self.stored.fired) if limit else None


class BadSpec(msgspec.Struct, frozen=True):
    """A spec that can never fire, and why."""

    slot: Slot
    spec: bytes
    reason: str

    @property
    def shown_key(self) -> str:
        return self.slot.member.decode(errors="backslashreplace")


def understand(slot: Slot, reply: Reply) -> DueSpec | BadSpec:
    """What `HMGET spec retry fired` says of a slot; errors that are not its own are raised."""
    if isinstance(reply, StoreError):
        if isinstance(reply, ServerRefused) and reply.code == "WRONGTYPE":
            return BadSpec(slot, b"", "a spec must be stored in a hash, and its key is no hash")
        raise reply
    spec: bytes | None = reply[0]
    key = slot.key
    if key is None:
        return BadSpec(slot, b"", "a spec key must be UTF-8")
    if not 0 <= slot.at_ms <= INSTANT_MS_MAX:
        return BadSpec(slot, spec or b"", "a score must be an instant in milliseconds")
    try:
        return DueSpec(key, slot.score, read_stored(*reply))
    except DecodeError as error:
        return BadSpec(slot, spec or b"", str(error))


Call = tuple[list[str], list["Part"]]

# A call of this many keeps the server from everyone else for about three milliseconds.
FIRES_PER_CALL_MAX = 500
CALLS_PER_WRITE_MAX = 256
BYTES_PER_WRITE_MAX = 1024 * 1024
# Markers guard against a score or a clock that is put back: for an hour, but with no more
# than about a thousand of them for each spec, so that fast specs do not fill the memory.
MARKER_MS_MIN, MARKER_MS_MAX = 60_000, 3_600_000
MARKERS_MAX = 1_000
# What an envelope holds besides its payload: id, times and a retry of its own.
_ENVELOPE_BYTES = 128


class FireEncoder:
    """Encodes the fires of one queue as script calls."""

    def __init__(self, keys: QueueKeys) -> None:
        self._keys = keys
        # Two queues may hold the same spec, and job ids end up in idempotency keys.
        self._seed = keys.queue.encode() + b"\0"

    def writes(self, plans: Sequence[tuple[DueSpec, Plan]], now_ms: int) -> Iterator[list[Call]]:
        """The calls of many plans, in order, as many at a time as may leave together."""
        calls: list[Call] = []
        size = 0
        for spec, plan in plans:
            for call in self.calls(spec, plan, now_ms):
                calls.append(call)
                size += sum(len(arg) for arg in call[1] if isinstance(arg, bytes))
                if size >= BYTES_PER_WRITE_MAX or len(calls) == CALLS_PER_WRITE_MAX:
                    yield calls
                    calls, size = [], 0
        if calls:
            yield calls

    def calls(self, spec: DueSpec, plan: Plan, now_ms: int) -> Iterator[Call]:
        """One plan; each call expects the window that the one before it armed."""
        step = _fires_per_call(spec)
        marker_ms = _marker_ms(plan)
        expected: Part = spec.score
        for at in range(0, max(1, len(plan.fires)), step):
            is_last = at + step >= len(plan.fires)
            next_ms = (plan.next_ms or 0) if is_last else plan.fires[at + step]
            keys, jobs = self._jobs(spec, plan.fires[at : at + step], now_ms)
            limits = (spec.stored.spec.limit or 0, spec.end_before_ms or 0)
            name = spec.stored.spec.job_name
            yield keys, [spec.key, expected, next_ms, *limits, marker_ms, name, *jobs]
            expected = next_ms

    def _jobs(
        self, spec: DueSpec, windows: Sequence[int], now_ms: int
    ) -> tuple[list[str], list[Part]]:
        seed = self._seed + spec.key.encode()
        keys = [self._keys.stream, self._keys.repeat, self._keys.repeat_spec(spec.key)]
        args: list[Part] = []
        for due_ms in windows:
            job_id = stable_job_id(seed, due_ms)
            keys.append(self._keys.uniq(job_id))
            args += (due_ms, spec.stored.envelope(job_id, now_ms))
        return keys, args


def _fires_per_call(spec: DueSpec) -> int:
    size = len(spec.stored.spec.payload) + _ENVELOPE_BYTES
    return max(1, min(FIRES_PER_CALL_MAX, BYTES_PER_WRITE_MAX // size))


def _marker_ms(plan: Plan) -> int:
    if plan.next_ms is None or not plan.fires:
        return MARKER_MS_MAX
    interval_ms = plan.next_ms - plan.fires[-1]
    return max(MARKER_MS_MIN, min(MARKER_MS_MAX, interval_ms * MARKERS_MAX))


class FiringStore:
    """Reads and fires the specs of one queue, over a connection of its caller."""

    def __init__(self, queue: str, connection: ReconnectingConnection) -> None:
        self._keys = QueueKeys(queue)
        self._encoder = FireEncoder(self._keys)
        self._connection = connection

    @property
    def queue(self) -> str:
        return self._keys.queue

    async def lead(self, holder: str, ttl_s: int) -> Lead:
        call: Call = ([self._keys.scheduler_lock, self._keys.repeat], [holder, ttl_s])
        return read_lead((await self._run("lead", [call]))[0])

    async def release_lock(self, holder: str) -> bool:
        call: Call = ([self._keys.scheduler_lock], [holder, self._keys.wake])
        return await self._run("release_lock", [call]) == [1]

    async def agenda(self, specs_max: int) -> Agenda:
        """The specs with the lowest scores and the server's time of day, in one round trip."""
        lowest = ("ZRANGE", self._keys.repeat, 0, specs_max - 1, "WITHSCORES")
        time, flat = self._raise_errors(await self._send([("TIME",), lowest]))
        now_ms = int(time[0]) * 1000 + int(time[1]) // 1000
        slots = [Slot(*pair) for pair in zip(flat[::2], flat[1::2], strict=True)]
        due = [slot for slot in slots if slot.at_ms <= now_ms]
        next_ms = slots[len(due)].at_ms if len(due) < len(slots) else math.inf
        return Agenda(now_ms, due, next_ms)

    async def read(self, slots: Sequence[Slot]) -> tuple[list[DueSpec], list[BadSpec]]:
        """Understand the specs of a page; one that cannot be is no harm to the others."""
        hashes = [self._keys.repeat_spec(slot.key or "") for slot in slots]
        replies = await self._send([("HMGET", key, "spec", "retry", "fired") for key in hashes])
        found = [understand(slot, reply) for slot, reply in zip(slots, replies, strict=True)]
        due = [one for one in found if isinstance(one, DueSpec)]
        return due, [one for one in found if isinstance(one, BadSpec)]

    async def fire(self, plans: Sequence[tuple[DueSpec, Plan]], now_ms: int) -> int:
        """Turn planned windows into jobs, each due time into one; the answer is how many."""
        fired = 0
        for calls in self._encoder.writes(plans, now_ms):
            fired += sum(count for _, count in await self._run("fire", calls))
        return fired

    async def quarantine(self, bad: BadSpec, now_ms: int) -> bool:
        """Put a bad spec aside with its bytes; False: it changed meanwhile."""
        keys = self._keys
        record = encode_record(BadRecord(bad.reason, bad.spec, now_ms))
        call: Call = (
            [keys.repeat, keys.repeat_spec(bad.slot.key or ""), keys.repeat_bad],
            [bad.slot.member, bad.slot.score, bad.spec, record],
        )
        return await self._run("quarantine_spec", [call]) == [1]

    async def _send(self, commands: Sequence[tuple[Part, ...]]) -> list[Reply]:
        connection = await self._connection.connection()
        return await connection.send(b"".join(map(pack, commands)), len(commands))

    async def _run(self, name: str, calls: Sequence[Call]) -> list[Reply]:
        connection = await self._connection.connection()
        return self._raise_errors(await script.run_many(connection, name, calls))

    def _raise_errors(self, replies: list[Reply]) -> list[Reply]:
        for reply in replies:
            if isinstance(reply, StoreError):
                self._connection.on_error(reply)
                raise reply
        return replies


_RECORDS_PER_READ_MAX = 100


class Upserted(msgspec.Struct, frozen=True):
    """What an upsert came to."""

    was_written: bool
    next_fire_ms: int


class ListedSpec(msgspec.Struct, frozen=True):
    """A spec, the key it is armed under and when it fires next."""

    key: str
    spec: RepeatSpec
    next_fire_ms: int


class RepeatStore:
    """The specs of one queue, over its producer's connection."""

    def __init__(self, producer: ProducerStore, reads: ReadStore) -> None:
        self._producer = producer
        self._reads = reads
        self._keys = producer.keys

    async def upsert(self, new: NewRepeat, deadline: Deadline) -> Upserted:
        """Write a spec unless it is there already; the server's clock decides its first fire."""
        keys = self._request_keys(new.key)
        answer, at_ms = await self._upsert(keys, new, "", deadline)
        if answer == b"new":
            first_ms = new.first_fire_ms(int(at_ms))
            answer, at_ms = await self._upsert(keys, new, first_ms, deadline)
        return Upserted(answer == b"written", int(float(at_ms)))

    async def remove(self, key: str) -> bool:
        """Remove a spec, armed or put aside."""
        keys = self._request_keys(key)
        return await self._producer.request("remove_repeatable", keys, REQUEST_TTL_S, key) == 1

    async def listed(self, limit: int) -> list[ListedSpec]:
        """The specs that fire next, soonest first; those that cannot be read are left out."""
        if limit < 1:
            return []
        (flat,) = await self._reads.ask(("ZRANGE", self._keys.repeat, 0, limit - 1, "WITHSCORES"))
        slots = [Slot(*pair) for pair in zip(flat[::2], flat[1::2], strict=True)]
        found: list[ListedSpec] = []
        for some in in_chunks(slots, SPECS_PER_READ_MAX):
            found += await self._read(some)
        return found

    async def stored(self, key: str) -> StoredRepeat | None:
        """One spec; None: there is none under that key.

        Raises:
            DecodeError: what is stored there can never fire.
        """
        spec_hash = self._keys.repeat_spec(key)
        (fields,) = await self._reads.ask(("HMGET", spec_hash, "spec", "retry", "fired"))
        return None if fields[0] is None else read_stored(*fields)

    async def bad(self, limit: int) -> list[tuple[str, BadRecord]]:
        """What was put aside, in no order."""
        found: dict[bytes, bytes] = {}
        cursor: Reply = b"0"
        while len(found) < limit:
            command = ("HSCAN", self._keys.repeat_bad, cursor, "COUNT", _RECORDS_PER_READ_MAX)
            ((cursor, flat),) = await self._reads.ask(command)
            found.update(zip(flat[::2], flat[1::2], strict=True))
            if cursor == b"0":
                break
        rows = list(found.items())[:limit]
        return [(key.decode(errors="backslashreplace"), decode_record(raw)) for key, raw in rows]

    async def _upsert(
        self, keys: list[str], new: NewRepeat, next_ms: int | str, deadline: Deadline
    ) -> tuple[bytes, bytes]:
        args = (REQUEST_TTL_S, new.key, new.spec, new.retry, next_ms)
        return await self._producer.request("upsert_repeatable", keys, *args, deadline=deadline)

    def _request_keys(self, key: str) -> list[str]:
        keys = self._keys
        token = keys.token(secrets.token_hex(12))
        return [keys.repeat, keys.repeat_spec(key), keys.repeat_bad, token]

    async def _read(self, slots: Sequence[Slot]) -> list[ListedSpec]:
        commands = [("HGET", self._keys.repeat_spec(slot.key or ""), "spec") for slot in slots]
        try:
            replies = await self._reads.ask(*commands)
        except ServerRefused:
            # A key of the wrong type must not hide the others.
            replies = [await self._spec_or_none(command) for command in commands]
        found = [_listed(slot, spec) for slot, spec in zip(slots, replies, strict=True)]
        return [one for one in found if one is not None]

    async def _spec_or_none(self, command: tuple[Part, ...]) -> Reply:
        try:
            return (await self._reads.ask(command))[0]
        except ServerRefused:
            return None


def _listed(slot: Slot, spec: bytes | None) -> ListedSpec | None:
    if spec is None or slot.key is None:
        return None
    try:
        return ListedSpec(slot.key, decode_spec(spec), int(slot.at_ms))
    except (DecodeError, OverflowError):
        return None
