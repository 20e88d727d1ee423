"""Collects the facts that a diagnosis of a server and its queues needs; writes nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from chasquimq.errors import ServerRefused, StoreError
from chasquimq.model.diagnosis import ServerFacts
from chasquimq.model.queue_diagnosis import (
    DeadKind,
    DeadLately,
    NameWaiting,
    QueueFacts,
    RunTimes,
    names_waiting,
)
from chasquimq.model.snapshot import SILENT_MS_MAX, GroupUse, WrongType
from chasquimq.store.inspect.pages import DelayedListing, PageSize, StreamPages
from chasquimq.store.inspect.queue import InspectorStore, KeyScan, is_missing, pairs, read_time
from chasquimq.store.net import script
from chasquimq.store.net.abilities import (
    PROMOTER,
    SCHEDULER,
    WORKER,
    missing_rights,
    natives,
    refusal_of,
)
from chasquimq.store.net.connection import pack
from chasquimq.wire.events import EventKind
from chasquimq.wire.keys import QueueKeys
from chasquimq.wire.stream_entry import (
    DlqEntry,
    decode_dlq,
    first_values,
    read_text,
    read_uint,
)

if TYPE_CHECKING:
    from chasquimq.store.inspect.pages import ReadStore
    from chasquimq.store.net.connection import Reply
    from chasquimq.store.net.reconnect import ReconnectingConnection

_EVENTS_MAX = 2_000
_GHOST_PAGE = 500
_GHOST_PAGES_MAX = 10
_SCAN_STEPS_MAX = 1_000
# How much of the delayed set and of the DLQ is worth a look.
_DELAYED_MAX, _DEAD_MAX, _LOOK_BYTES_MAX = 2_000, 2_000, 8 * 1024 * 1024
_LATELY_MS, _MINUTE_MS = 3_600_000, 60_000
_KINDS_MAX = 10
# No job is ever added under this name: it is only asked what the server would do.
_SCRATCH_QUEUE = "doctor"
# So many names fall into any part of a cluster that is worth a look.
_NAMES_MAX = 20_000
_TYPES = {
    "stream": "stream",
    "dlq": "stream",
    "events": "stream",
    "history": "stream",
    "delayed": "zset",
    "repeat": "zset",
    "dix": "hash",
    "repeat_bad": "hash",
    "promoter_lock": "string",
    "scheduler_lock": "string",
}


class DiagnosingStore:
    """Facts about one server, over a connection of its caller."""

    def __init__(self, connection: ReconnectingConnection, reads: ReadStore) -> None:
        self._connection = connection
        self._reads = reads

    async def server(self, holds: Callable[[str], bool] | None = None) -> ServerFacts:
        """What the server says of itself; one of a cluster `holds` some queues and not others."""
        connection = await self._connection.connection()
        rtt_ms, ahead_ms = await self._clock()
        abilities = await natives(connection, QueueKeys(_scratch_queue(holds)))
        facts = await self._info()
        return ServerFacts(
            kind="valkey" if facts.get("server_name") == "valkey" else "redis",
            version=facts.get("valkey_version") or facts.get("redis_version", "?")
            if facts
            else None,
            role={"slave": "replica"}.get(facts.get("role", ""), facts.get("role", "master")),
            is_loading=facts.get("loading") == "1",
            rtt_ms=rtt_ms,
            clock_ahead_ms=ahead_ms,
            abilities=abilities,
            eviction_policy=facts.get("maxmemory_policy"),
            used_bytes=int(facts.get("used_memory", 0)),
            maxmemory_bytes=int(facts.get("maxmemory", 0)),
            system_bytes=int(facts.get("total_system_memory", 0)) or None,
            has_aof=facts.get("aof_enabled") == "1",
            appendfsync=await self._configured("appendfsync"),
            saves=_saves(await self._configured("save")),
            last_aof_write=facts.get("aof_last_write_status"),
            last_save=facts.get("rdb_last_bgsave_status"),
            client_count=int(facts.get("connected_clients", 0)),
            client_max=int(facts.get("maxclients", 0)) or None,
        )

    async def wrong_types(self, keys: QueueKeys) -> list[WrongType]:
        """Keys of the queue that hold something else than they must."""
        names = {getattr(keys, place): wanted for place, wanted in _TYPES.items()}
        found = await self._reads.ask(*[("TYPE", key) for key in names])
        return [
            WrongType(key, wanted, kind.decode())
            for (key, wanted), kind in zip(names.items(), found, strict=True)
            if kind.decode() not in ("none", wanted)
        ]

    async def queue(self, keys: QueueKeys, group: str) -> QueueFacts:
        """What the server knows of one queue whose keys have the right types."""
        inspector = InspectorStore(keys.queue, self._connection, group)
        snapshot = await inspector.snapshot()
        promoter, scheduler, first_fire, bad = await self._reads.ask(
            ("GET", keys.promoter_lock),
            ("GET", keys.scheduler_lock),
            ("ZRANGE", keys.repeat, 0, 0, "WITHSCORES"),
            ("HLEN", keys.repeat_bad),
        )
        ghosts, looked_at = await self._ghosts(keys, group) if snapshot.pending else (0, 0)
        unique = await KeyScan(self._reads).unique_markers(keys, _SCAN_STEPS_MAX)
        return QueueFacts(
            snapshot=snapshot,
            groups=await self.groups(keys),
            workers=await inspector.workers(),
            ghost_count=ghosts,
            pending_looked_at=looked_at,
            run_times=await self._run_times(keys),
            unique_count=unique.count,
            unique_bytes=unique.bytes_estimate,
            unique_is_complete=unique.is_complete,
            promoter=promoter and read_text(promoter),
            scheduler=scheduler and read_text(scheduler),
            repeat_lag_ms=int(snapshot.at_ms - float(first_fire[1])) if first_fire else None,
            quarantined_count=bad,
            names_waiting=await self._names_waiting(keys),
            dead_lately=await self._dead_lately(keys, snapshot.at_ms),
        )

    async def lacking_rights(self, keys: QueueKeys) -> ServerRefused | None:
        """What a worker of this user would be refused for when it starts."""
        roles = (WORKER, PROMOTER, SCHEDULER)
        connection = await self._connection.connection()
        missing = await missing_rights(connection, keys, roles)
        return await refusal_of(connection, keys, missing, roles) if missing else None

    async def groups(self, keys: QueueKeys) -> list[GroupUse]:
        """The consumer groups of a queue, and what uses each."""
        (reply,) = await self._connection.ask(pack(("XINFO", "GROUPS", keys.stream)))
        if is_missing(reply):
            return []
        if isinstance(reply, StoreError):
            raise reply
        return [await self._use(keys, pairs(row)) for row in reply]

    async def _info(self) -> dict[str, str]:
        try:
            (reply,) = await self._reads.ask(("INFO",))
        except ServerRefused as refused:
            if refused.code != "NOPERM":
                raise
            return {}
        return _info(reply)

    async def _clock(self) -> tuple[float, float]:
        """The shortest of a few round trips, and how far the server's clock is ahead."""
        asked = [await self._ask_time() for _ in range(3)]
        return min(asked)

    async def _ask_time(self) -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        before_s = loop.time()
        (reply,) = await self._reads.ask(("TIME",))
        rtt_ms = (loop.time() - before_s) * 1000
        return rtt_ms, read_time(reply) + rtt_ms / 2 - time.time() * 1000

    async def _configured(self, name: str) -> str | None:
        try:
            (reply,) = await self._reads.ask(("CONFIG", "GET", name))
        except ServerRefused:
            # Hosted servers and access lists keep their configuration to themselves.
            return None
        return read_text(reply[1]) if reply else None

    async def _use(self, keys: QueueKeys, group: dict[bytes, Reply]) -> GroupUse:
        name = read_text(group[b"name"])
        found = await InspectorStore(keys.queue, self._connection, name).consumers()
        workers = sum(not one.is_parking and one.idle_ms <= SILENT_MS_MAX for one in found)
        return GroupUse(name, workers, cast("int", group[b"pending"]))

    async def _ghosts(self, keys: QueueKeys, group: str) -> tuple[int, int]:
        ghosts, looked_at, at = 0, 0, "-"
        for _ in range(_GHOST_PAGES_MAX):
            connection = await self._connection.connection()
            found, size, after = await script.run(
                connection, "count_ghosts", [keys.stream], group, at, _GHOST_PAGE
            )
            ghosts, looked_at, at = ghosts + found, looked_at + size, after.decode()
            if not at:
                break
        return ghosts, looked_at

    async def _names_waiting(self, keys: QueueKeys) -> list[NameWaiting]:
        """What waits for a handler; such jobs are due again within seconds, so they come first."""
        listing = DelayedListing(keys, self._reads)
        return names_waiting(await listing.soonest(_DELAYED_MAX, _LOOK_BYTES_MAX))

    async def _dead_lately(self, keys: QueueKeys, now_ms: int) -> DeadLately:
        """The DLQ's newest entries; their ids say when they came, by the server's clock."""
        since = str(max(0, now_ms - _LATELY_MS))
        pages = StreamPages(self._reads, keys.dlq, PageSize(), oldest=since, is_newest_first=True)
        found: list[DlqEntry] = []
        bytes_left = _LOOK_BYTES_MAX
        while (page := await pages.next()) is not None:
            found += [decode_dlq(entry_id, fields) for entry_id, fields in page]
            bytes_left -= sum(len(part) for _, fields in page for part in fields)
            if len(found) >= _DEAD_MAX or bytes_left <= 0:
                return _dead_lately(found, now_ms, is_complete=False)
        return _dead_lately(found, now_ms, is_complete=True)

    async def _run_times(self, keys: QueueKeys) -> RunTimes | None:
        command = ("XREVRANGE", keys.events, "+", "-", "COUNT", _EVENTS_MAX)
        (entries,) = await self._reads.ask(command)
        runs_us = sorted(us for us in map(_duration_us, entries) if us is not None)
        return _summary(runs_us) if runs_us else None


def _scratch_queue(holds: Callable[[str], bool] | None) -> str:
    if holds is None:
        return _SCRATCH_QUEUE
    names = (f"{_SCRATCH_QUEUE}-{at}" for at in range(_NAMES_MAX))
    return next(filter(holds, names), _SCRATCH_QUEUE)


def _info(reply: bytes) -> dict[str, str]:
    lines = [line for line in read_text(reply).splitlines() if ":" in line]
    return dict(line.split(":", 1) for line in lines)


def _saves(configured: str | None) -> bool | None:
    return None if configured is None else bool(configured.strip())


def _dead_lately(found: Sequence[DlqEntry], now_ms: int, *, is_complete: bool) -> DeadLately:
    kinds: dict[tuple[str, str, str], list[DlqEntry]] = {}
    for one in found:
        kinds.setdefault((one.name, one.reason, one.fingerprint), []).append(one)
    most = sorted(kinds.values(), key=len, reverse=True)
    return DeadLately(
        len(found),
        sum(now_ms - int(one.entry_id.partition("-")[0]) <= _MINUTE_MS for one in found),
        [_dead_kind(many) for many in most[:_KINDS_MAX]],
        is_complete,
    )


def _dead_kind(many: Sequence[DlqEntry]) -> DeadKind:
    newest = many[0]
    return DeadKind(newest.name, newest.reason, newest.error or newest.detail or "", len(many))


def _duration_us(entry: Sequence[Reply]) -> int | None:
    fields = first_values(entry[1])
    if fields.get(b"e") != EventKind.COMPLETED.encode():
        return None
    return read_uint(fields.get(b"duration_us"))


def _summary(runs_us: Sequence[int]) -> RunTimes:
    count = len(runs_us)
    p50_us, p99_us = runs_us[count // 2], runs_us[min(count - 1, count * 99 // 100)]
    return RunTimes(count, p50_us / 1000, p99_us / 1000, runs_us[-1] / 1000)
