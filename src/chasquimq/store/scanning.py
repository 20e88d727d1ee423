"""Walks the keyspace of a server: which queues there are, and how many keys of one kind."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from chasquimq.errors import SettingsError
from chasquimq.wire.keys import QueueKeys
from chasquimq.wire.names import check_queue_name

if TYPE_CHECKING:
    from chasquimq.store.connection import Part, Reply
    from chasquimq.store.reading import ReadStore

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
    """Scans in small steps, so that nobody waits behind it for long."""

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
