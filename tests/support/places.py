"""Where jobs lie on the server, and what lies there beside them: a dump for the checker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from chasquimq.errors import DecodeError
from chasquimq.wire.envelope import split_envelope
from chasquimq.wire.events import decode_event
from chasquimq.wire.history import AttemptOutcome, decode_history
from chasquimq.wire.stream_entry import split_member
from support.raw import Raw

_PAGE = 10_000
_LASTING = (
    "stream", "wake", "delayed", "dlq", "events", "history", "dix", "repeat", "repeat:bad",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """A row of the history."""

    worker: str
    job_id: str
    outcome: AttemptOutcome


@dataclass(frozen=True, kw_only=True)
class Places:
    """Everything a queue has on the server that the rules look at; jobs go by their ids."""

    ready: Sequence[str] = ()
    delayed: Sequence[str] = ()
    # Each with its generation.
    dead: Sequence[tuple[str, int]] = ()
    # Pending entries that are not in the stream.
    ghosts: Sequence[str] = ()
    # Consumers that still hold something.
    holders: Sequence[str] = ()
    # Keys that should pass away by themselves and will not.
    timeless: Sequence[str] = ()
    # Jobs that the index of delayed jobs knows.
    indexed: Sequence[str] = ()
    # Kind and job.
    events: Sequence[tuple[str, str]] = ()
    attempts: Sequence[Attempt] = ()
    # Workers that have written the last entry of their history.
    ended_workers: Sequence[str] = ()

    @property
    def queued(self) -> list[str]:
        return [*self.ready, *self.delayed]


async def look(raw: Raw, group: str = "default") -> Places:
    """Take the dump; nothing is moved."""
    entries = await raw.entries(raw.keys.stream)
    members = await raw("ZRANGE", raw.keys.delayed, 0, -1)
    history = [decode_history(fields) for fields in await _flat_entries(raw, raw.keys.history)]
    events = [decode_event(fields) for fields in await _flat_entries(raw, raw.keys.events)]
    return Places(
        ready=[_life(fields.get(b"d", b""))[0] for _, fields in entries],
        delayed=[_life(_envelope(member))[0] for member in members],
        dead=[_life(fields.get(b"d", b"")) for fields in await raw.dlq()],
        ghosts=await _ghosts(raw, group, {entry_id for entry_id, _ in entries}),
        holders=await _holders(raw, group),
        timeless=await _timeless(raw),
        indexed=[job_id.decode() for job_id in await raw("HKEYS", raw.keys.dix)],
        events=[(event.kind, event.job_id) for event in events],
        attempts=[
            Attempt(worker=entry.worker, job_id=row.job_id, outcome=AttemptOutcome(row.outcome))
            for entry in history
            for row in entry.rows()
        ],
        ended_workers=[entry.worker for entry in history if entry.is_last],
    )


def _life(envelope: bytes) -> tuple[str, int]:
    try:
        job, extras = split_envelope(envelope)
    except DecodeError:
        return f"undecodable {envelope[:16]!r}", 0
    return job.id, (extras or {}).get("generation", 0)


def _envelope(member: bytes) -> bytes:
    try:
        return split_member(member)[1]
    except DecodeError:
        return member


async def _flat_entries(raw: Raw, key: str) -> list[Any]:
    """Fields of every entry, page by page; a key of another type has none."""
    if await raw("TYPE", key) != b"stream":
        return []
    found, start = [], "-"
    while page := await raw("XRANGE", key, start, "+", "COUNT", _PAGE):
        found += [fields for _, fields in page]
        start = f"({page[-1][0].decode()}"
    return found


async def _ghosts(raw: Raw, group: str, entry_ids: set[bytes]) -> list[str]:
    if not await _has_group(raw, group):
        return []
    rows = await raw("XPENDING", raw.keys.stream, group, "-", "+", 1_000_000)
    return [row[0].decode() for row in rows if row[0] not in entry_ids]


async def _holders(raw: Raw, group: str) -> list[str]:
    if not await _has_group(raw, group):
        return []
    rows = await raw("XINFO", "CONSUMERS", raw.keys.stream, group)
    facts = [dict(zip(row[::2], row[1::2], strict=True)) for row in rows]
    return [one[b"name"].decode() for one in facts if one[b"pending"]]


async def _has_group(raw: Raw, group: str) -> bool:
    if await raw("TYPE", raw.keys.stream) != b"stream":
        return False
    groups = await raw("XINFO", "GROUPS", raw.keys.stream)
    return group.encode() in [row[1] for row in groups]


async def _timeless(raw: Raw) -> list[str]:
    prefix = "{chasqui:" + raw.keys.queue + "}:"
    found, cursor = [], b"0"
    while True:
        cursor, keys = await raw("SCAN", cursor, "MATCH", prefix + "*", "COUNT", 1_000)
        passing = {one.decode() for one in keys if not _may_last(one.decode(), prefix)}
        found += [key for key in passing if await raw("TTL", key) == -1]
        if cursor == b"0":
            return found


def _may_last(key: str, prefix: str) -> bool:
    name = key.removeprefix(prefix)
    return name in _LASTING or name.startswith("repeat:spec:")
