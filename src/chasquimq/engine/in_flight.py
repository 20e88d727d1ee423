"""Keeps what this worker has read and not settled: waiting, running, finished but unconfirmed.

Entries are held by their keys. A key is the entry id, with a mark in front where the entry is not of
the queue's own stream.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from chasquimq.engine.delivery_count import Suspects

if TYPE_CHECKING:
    from chasquimq.model.delivery import Delivery, RejectedEntry
    from chasquimq.settings import ReadSettings

_RATE_WINDOW_S = 0.05
_READ_MAX = 512
# Below this a read is so quick that cutting it in two would only double its cost.
_HALF_MIN = 16
# Finished jobs whose ack is under way; beyond this the reader waits for the acker.
_UNCONFIRMED_MAX = 2_048
# What is to be buried may be of any size, and is copied on its way out.
_REFUSED_BYTES_MAX = 8 * 1024 * 1024


class _Entry(Protocol):
    @property
    def entry_id(self) -> bytes: ...

    @property
    def key(self) -> bytes: ...


class InFlight:
    """Answers the reader how much room there is, and the lease what is to be renewed."""

    def __init__(
        self,
        concurrency: int,
        read: ReadSettings,
        max_attempts_of: Callable[[Delivery], int],
    ) -> None:
        self.waiting: deque[Delivery] = deque()
        # Redelivered jobs; they take no room, because few of them run at once.
        self.suspects = Suspects(max_attempts_of)
        self.running_count = 0
        self.running_max = concurrency
        self._held: dict[bytes, Delivery] = {}
        # On their way to the DLQ without having started; leased and bounded like the others.
        self._refused: dict[bytes, int] = {}
        # Whether anything was read from another stream than the queue's own.
        self._has_lanes = False
        self._read = read
        self._finished = 0
        self._rate_per_s = 0.0
        self._rate_since_s = time.monotonic()
        self._has_room = asyncio.Event()

    @property
    def held_count(self) -> int:
        return len(self._held) + len(self._refused)

    @property
    def waiting_count(self) -> int:
        return len(self.waiting) + len(self.suspects.waiting)

    @property
    def unconfirmed_count(self) -> int:
        return self.held_count - self.waiting_count - self.running_count

    def admit(self, deliveries: list[Delivery], *, are_plain: bool = True) -> list[Delivery]:
        """Take deliveries of one lane in; answers those held already, which must not start twice.

        `are_plain`: none of them is redelivered.
        """
        if deliveries and deliveries[0].lane:
            self._has_lanes = True
        fresh = dict(zip(self.keys_of(deliveries), deliveries, strict=True))
        known: list[Delivery] = []
        if not self._held.keys().isdisjoint(fresh):
            known = [fresh.pop(key) for key in list(fresh) if key in self._held]
        self._held.update(fresh)
        if are_plain:
            self.waiting.extend(fresh.values())
        else:
            self.waiting.extend([one for one in fresh.values() if not one.earlier])
            self.suspects.waiting.extend([one for one in fresh.values() if one.earlier])
        return known

    def suspect(self, deliveries: list[Delivery]) -> None:
        """Move what waits and turns out to have run elsewhere to the suspects."""
        for delivery in deliveries:
            if delivery.earlier and delivery in self.waiting:
                self.waiting.remove(delivery)
                delivery.is_charged = False
                self.suspects.waiting.append(delivery)

    def refuse(self, entry: Delivery | RejectedEntry, size_bytes: int) -> bool:
        """Hold an entry only until it is buried; False: it is held already."""
        if entry.lane:
            self._has_lanes = True
        if entry.key in self._refused:
            return False
        self._refused[entry.key] = size_bytes
        return True

    def keys_of(self, entries: Sequence[_Entry]) -> list[bytes]:
        """Their keys; while all are of the queue's own stream, these are the entry ids."""
        if self._has_lanes:
            return [one.key for one in entries]
        return [one.entry_id for one in entries]

    def take_all(self) -> list[Delivery]:
        """Everything that has not started, to be handed back."""
        leftovers = [*self.waiting, *self.suspects.take_all()]
        self.waiting.clear()
        return leftovers

    def release(self, keys: Collection[bytes]) -> None:
        """Forget entries that are settled, or belong to another worker now."""
        held, held_count = self._held, len(self._held)
        for key in keys:
            held.pop(key, None)
        self._finished += held_count - len(held)
        if self._refused:
            for key in keys:
                self._refused.pop(key, None)
        self.suspects.settled(keys)
        self._has_room.set()

    def get(self, key: bytes) -> Delivery | None:
        return self._held.get(key)

    def has(self, key: bytes) -> bool:
        """Whether it is held here, to be run or to be buried."""
        return key in self._held or key in self._refused

    def deliveries(self) -> list[Delivery]:
        """A copy of all that is held to be run, or was run and is not confirmed."""
        return list(self._held.values())

    def keys(self) -> list[bytes]:
        """A copy of every held key; safe to call from the lease thread."""
        return list(self._held) + list(self._refused)

    def ran_through(self, since_ns: int) -> list[Delivery]:
        """Jobs in the event loop that may have blocked it from that moment until now.

        Where one of them began after it and ran most of the time, it is the only answer.
        """
        half_ns = (time.monotonic_ns() - since_ns) // 2
        end_ns = since_ns + half_ns
        ran = [one for one in self._held.values() if _is_on_loop(one) and _end_ns(one) > end_ns]
        own = [one for one in ran if one.is_finished and one.started_ns > since_ns]
        long = [one for one in own if one.duration_us * 1000 > half_ns]
        return long if len(long) == 1 else ran

    def room(self) -> int:
        """How many more deliveries may be read now."""
        if self.unconfirmed_count >= _UNCONFIRMED_MAX or self._is_heavy():
            return 0
        held_max = self._held_max()
        # Half at a time: while one half runs, the server gets the other ready.
        half = max(_HALF_MIN, held_max // 2)
        return min(_READ_MAX, half, held_max - len(self.waiting) - self.running_count)

    async def wait_for_room(self) -> None:
        """Return when something was released since the last look."""
        self._has_room.clear()
        await self._has_room.wait()

    async def wait_for_release(self, within_s: float) -> None:
        """Return when something was released, or after that time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self.wait_for_room()

    def wake(self) -> None:
        self._has_room.set()

    def _is_heavy(self) -> bool:
        # Summed when asked, once a read, because counting along would cost every job.
        held_bytes = sum([len(one.envelope) for one in self.waiting])
        if self.suspects.waiting:
            held_bytes += sum([len(one.envelope) for one in self.suspects.waiting])
        if held_bytes >= self._read.held_bytes_max:
            return True
        return sum(self._refused.values()) >= _REFUSED_BYTES_MAX

    def _held_max(self) -> int:
        prefetch = min(max(1, int(self._rate() * _RATE_WINDOW_S)), 2 * self.running_max)
        return max(self.running_max + prefetch, self._read.count or 0)

    def _rate(self) -> float:
        now_s = time.monotonic()
        passed_s = now_s - self._rate_since_s
        if passed_s >= _RATE_WINDOW_S:
            self._rate_per_s = self._finished / passed_s
            self._finished, self._rate_since_s = 0, now_s
        return self._rate_per_s


def _is_on_loop(delivery: Delivery) -> bool:
    return delivery.started_ns > 0 and not (delivery.is_unstoppable or delivery.has_own_timer)


def _end_ns(delivery: Delivery) -> float:
    """When its handler ended; never, while it runs."""
    if not delivery.is_finished:
        return math.inf
    return delivery.started_ns + delivery.duration_us * 1000
