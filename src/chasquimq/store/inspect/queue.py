"""Reads counts and snapshots of queues, and finds the queues of a server."""

from __future__ import annotations

import math
import re
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import msgspec

from chasquimq.errors import ServerRefused, SettingsError, StoreError
from chasquimq.model.chunks import in_chunks
from chasquimq.model.json_value import ToDict
from chasquimq.model.snapshot import Snapshot, WorkerSnapshot
from chasquimq.store.consumer.store import PARKING
from chasquimq.store.net.connection import Connection, Part, Reply, pack
from chasquimq.wire.keys import QueueKeys, check_queue_name
from chasquimq.wire.outcome import decode_worker_record
from chasquimq.wire.stream_entry import read_text

if TYPE_CHECKING:
    from chasquimq.store.inspect.pages import ReadStore
    from chasquimq.store.net.reconnect import ReconnectingConnection

# How far a scan has come: keys seen so far, and about how many there are.
Advance = Callable[[int, int], None]

_KEYS_PER_STEP = 1_000
_SAMPLE_MAX = 20
_EVERY_QUEUE = "{chasqui:*}:*"
# The few keys of a queue that are worth a look, and none of the many that carry an id.
_TYPES = ("stream", "zset")
_PLACES = frozenset({b"stream", b"delayed", b"dlq", b"repeat"})
_KEY = re.compile(rb"\{chasqui:(?P<queue>[^{}]+)\}:(?P<place>[a-z]+)")
_GLOB = re.compile(r"[*?\[\]\\^]")


class KeyCount(msgspec.Struct, frozen=True):
    """How many keys matched; `is_complete` False: the scan was cut short, there may be more."""

    count: int
    is_complete: bool
    sample_bytes: float | None = None

    @property
    def bytes_estimate(self) -> int | None:
        return None if self.sample_bytes is None else int(self.count * self.sample_bytes)


class KeyScan:
    """Scans in small steps, so that no client waits behind it for long."""

    def __init__(self, reads: ReadStore) -> None:
        self._reads = reads

    async def queue_names(self, advance: Advance | None = None) -> list[str]:
        """Every queue that has a stream, a DLQ, delayed or repeatable jobs; sorted."""
        (key_count,) = await self._reads.ask(("DBSIZE",))
        names: set[str] = set()
        seen = 0
        for kind in _TYPES:
            async for keys in self._steps(_EVERY_QUEUE, "TYPE", kind):
                names.update(name for name in map(_queue_name, keys) if name)
                seen += _KEYS_PER_STEP
                if advance:
                    advance(min(seen, key_count * len(_TYPES)), key_count * len(_TYPES))
        return sorted(names)

    async def unique_markers(self, keys: QueueKeys, steps_max: int) -> KeyCount:
        """How many ids are kept unique, and what a few of them weigh."""
        count, steps, sample = 0, 0, list[bytes]()
        async for found in self._steps(escaped(keys.uniq("")) + "*"):
            count, steps = count + len(found), steps + 1
            sample += found[: _SAMPLE_MAX - len(sample)]
            if steps >= steps_max:
                break
        is_complete = steps < steps_max
        return KeyCount(count, is_complete, await self._mean_bytes(sample))

    async def _steps(self, pattern: str, *more: Part) -> AsyncIterator[Sequence[bytes]]:
        cursor: Reply = b"0"
        while True:
            command = ("SCAN", cursor, "MATCH", pattern, "COUNT", _KEYS_PER_STEP, *more)
            ((cursor, keys),) = await self._reads.ask(command)
            yield keys
            if cursor == b"0":
                return

    async def _mean_bytes(self, keys: Sequence[bytes]) -> float | None:
        if not keys:
            return None
        sizes = await self._reads.ask(*[("MEMORY", "USAGE", key) for key in keys])
        known = [size for size in sizes if size is not None]
        return sum(known) / len(known) if known else None


def escaped(text: str) -> str:
    """The text as a pattern that matches only itself."""
    return _GLOB.sub(r"\\\g<0>", text)


def _queue_name(key: bytes) -> str | None:
    found = _KEY.fullmatch(key)
    if found is None or found["place"] not in _PLACES:
        return None
    try:
        return check_queue_name(found["queue"].decode())
    except (SettingsError, UnicodeDecodeError):
        # Another program's key: nothing of ours can be under such a name.
        return None


_RECORDS_PER_CALL_MAX = 500


@dataclass(frozen=True, slots=True)
class Counts(ToDict):
    """How many jobs are where.

    `ready` wait in the stream, those included that a worker gave back; `running` are held by
    workers, `delayed` wait for their time (retries too), `dead` lie in the DLQ.
    """

    ready: int = 0
    running: int = 0
    delayed: int = 0
    dead: int = 0
    repeatable: int = 0

    @property
    def backlog(self) -> int:
        """What still has to be done, now or later."""
        return self.ready + self.running + self.delayed

    def to_dict(self) -> dict[str, Any]:
        """The counts and the backlog."""
        return {**ToDict.to_dict(self), "backlog": self.backlog}


class InspectorStore:
    """Counts and peeks of one queue, over a connection of its caller."""

    def __init__(
        self, queue: str, connection: ReconnectingConnection, group: str = "default"
    ) -> None:
        self._keys = QueueKeys(queue)
        self._connection = connection
        self._group = group

    async def counts(self) -> Counts:
        """All depths in one round trip."""
        keys = self._keys
        length, pending, *others = await self._connection.ask(
            pack(("XLEN", keys.stream))
            + pack(("XPENDING", keys.stream, self._group))
            + pack(("ZCARD", keys.delayed))
            + pack(("XLEN", keys.dlq))
            + pack(("ZCARD", keys.repeat)),
            5,
        )
        running, _ = _held_and_parked(pending)
        ready = max(0, _number(length) - running)
        return Counts(ready, running, *map(_number, others))

    async def delayed_due_within(self, ms: int) -> int:
        """How many delayed jobs fall due within that time, by the server's clock."""
        connection = await self._connection.connection()
        now_ms = await server_ms(connection)
        return await self._connection.call("ZCOUNT", self._keys.delayed, "-inf", now_ms + ms)

    async def snapshot(self) -> Snapshot:
        """Everything that is counted, in one round trip."""
        questions = snapshot_questions(self._keys, self._group)
        replies = await self._connection.ask(b"".join(map(pack, questions)), len(questions))
        return read_snapshot(self._keys.queue, self._group, replies)

    async def workers(self) -> list[WorkerSnapshot]:
        """The consumers of the group, with what they say of themselves."""
        consumers = await self.consumers()
        records = await self._records([one.name for one in consumers if not one.is_parking])
        return [_with_record(one, records.get(one.name), self._group) for one in consumers]

    async def _records(self, names: Sequence[str]) -> dict[str, tuple[Reply, Reply]]:
        """The bytes of the records, and how long each is still kept."""
        replies: list[Reply] = []
        for some in in_chunks(names, _RECORDS_PER_CALL_MAX):
            keys = [self._keys.worker(name) for name in some]
            request = b"".join(pack(("GET", key)) + pack(("PTTL", key)) for key in keys)
            replies += await self._connection.ask(request, 2 * len(keys))
        return dict(zip(names, zip(replies[::2], replies[1::2], strict=True), strict=True))

    async def consumers(self) -> list[WorkerSnapshot]:
        """The consumers of the group; none where there is no group."""
        (reply,) = await self._connection.ask(
            pack(("XINFO", "CONSUMERS", self._keys.stream, self._group))
        )
        if is_missing(reply):
            return []
        _raise_error(reply)
        return [_worker(pairs(row)) for row in reply]


async def server_ms(connection: Connection) -> int:
    """The server's time of day."""
    return read_time(await connection.call("TIME"))


def snapshot_questions(keys: QueueKeys, group: str) -> list[tuple[Part, ...]]:
    """What `read_snapshot` needs the answers to."""
    return [
        ("TIME",),
        ("EXISTS", keys.stream, keys.delayed, keys.dlq, keys.events, keys.history, keys.repeat),
        ("XLEN", keys.stream),
        ("XPENDING", keys.stream, group),
        ("XLEN", keys.dlq),
        ("ZCARD", keys.delayed),
        ("ZRANGE", keys.delayed, 0, 0, "WITHSCORES"),
        ("ZCARD", keys.repeat),
        ("XINFO", "STREAM", keys.stream),
    ]


def read_snapshot(queue: str, group: str, replies: Sequence[Reply]) -> Snapshot:
    """The picture that the answers make; an error among them is raised."""
    time, exists, depth, pending, dlq, delayed, oldest, repeatable, about_stream = replies
    for reply in (time, exists, oldest):
        _raise_error(reply)
    now_ms = read_time(time)
    held, parked = _held_and_parked(pending)
    length, added = _stream_counts(about_stream, _number(depth))
    return Snapshot(
        queue=queue,
        group=group,
        at_ms=now_ms,
        exists=exists > 0,
        has_group=not is_missing(pending),
        stream_depth=length,
        pending=held,
        parked=parked,
        dlq_depth=_number(dlq),
        delayed_depth=_number(delayed),
        oldest_delayed_lag_ms=_lag_ms(oldest, now_ms),
        repeatable_count=_number(repeatable),
        added_total=added,
    )


def is_missing(reply: Reply) -> bool:
    """Whether a question was about a group or a key that is not there."""
    if not isinstance(reply, ServerRefused):
        return False
    return reply.code == "NOGROUP" or "no such key" in str(reply)


def pairs(row: Sequence[Reply]) -> dict[bytes, Reply]:
    """A flat answer as a dict."""
    return dict(zip(row[::2], row[1::2], strict=True))


def read_time(reply: Sequence[bytes]) -> int:
    """The answer to TIME, in milliseconds."""
    return int(reply[0]) * 1000 + int(reply[1]) // 1000


def _worker(row: dict[bytes, Reply]) -> WorkerSnapshot:
    name = read_text(row[b"name"])
    return WorkerSnapshot(
        name=name, pending=row[b"pending"], idle_ms=row[b"idle"], is_parking=name == PARKING
    )


def _with_record(
    worker: WorkerSnapshot, replies: tuple[Reply, Reply] | None, group: str
) -> WorkerSnapshot:
    """The worker with its record; one that may not be read, or is of another group, is none."""
    raw, ttl_ms = replies or (None, None)
    record = decode_worker_record(raw) if isinstance(raw, bytes) else None
    if record is None or record.group != group:
        return worker
    # A record that never runs out says nothing about its age.
    left_ms = ttl_ms if isinstance(ttl_ms, int) else -1
    age_ms = max(0, record.ttl_ms - left_ms) if left_ms >= 0 else None
    return replace(worker, record=record, record_age_ms=age_ms)


def _held_and_parked(reply: Reply) -> tuple[int, int]:
    """How many jobs workers hold, and how many were given back and wait for the next worker."""
    total = _number(reply)
    rows: Sequence[Sequence[Reply]] = (reply[3] or ()) if total else ()
    parked = sum(int(count) for name, count in rows if name == PARKING.encode())
    return total - parked, parked


def _lag_ms(oldest: Sequence[bytes], now_ms: int) -> int | None:
    if not oldest:
        return None
    # A score may be minus infinity, which no whole number can express.
    lag_ms = now_ms - max(0.0, float(oldest[1]))
    return int(lag_ms) if math.isfinite(lag_ms) and lag_ms > 0 else 0


def _stream_counts(reply: Reply, length: int) -> tuple[int, int | None]:
    """How long the stream is and how much was ever added; `length` where the reply has none."""
    if is_missing(reply):
        return 0, 0
    if isinstance(reply, StoreError):
        # A server or an access list that does not say.
        return length, None
    # Both from one reply: an entry that comes between two would count as left, for a moment.
    about = pairs(reply)
    return about[b"length"], about.get(b"entries-added")


def _number(reply: Reply) -> int:
    if is_missing(reply):
        return 0
    _raise_error(reply)
    if isinstance(reply, int):
        return reply
    # XPENDING's summary begins with the count.
    return cast("int", reply[0])


def _raise_error(reply: Reply) -> None:
    if isinstance(reply, StoreError):
        raise reply
