"""Times a stretch of work, and records the commands that a process sends meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from chasquimq.errors import ConnectionLost, StoreError
from chasquimq.store.net.connection import Connection

if TYPE_CHECKING:
    from benchmarks.scenario import Plan
    from chasquimq.store.net.connection import End, OnEnd

_POLL_S = 0.001
# Where several processes share a queue each has to look while it works.
_SHARED_POLL_S = 0.005


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """How many jobs took how long, and since when."""

    jobs: int
    began_s: float
    seconds: float
    cpu_seconds: float


class Stopwatch:
    """Runs from birth; processor time counts every thread of this process."""

    def __init__(self) -> None:
        self.began_s = time.perf_counter()
        self._began_cpu_s = time.process_time()

    def stop(self, jobs: int) -> Stretch:
        return Stretch(
            jobs=jobs,
            began_s=self.began_s,
            seconds=time.perf_counter() - self.began_s,
            cpu_seconds=time.process_time() - self._began_cpu_s,
        )


async def time_calls(
    call: Callable[[], Awaitable[object]],
    plan: Plan,
    on_start: Callable[[], None] = lambda: None,
) -> Stretch:
    """Callers side by side, each waiting for its own answer; one call each to warm up."""

    async def repeat(count: int) -> None:
        for _ in range(count):
            await call()

    await asyncio.gather(*(repeat(1) for _ in range(plan.in_flight)))
    on_start()
    watch = Stopwatch()
    await asyncio.gather(*(repeat(plan.calls_per_caller) for _ in range(plan.in_flight)))
    return watch.stop(plan.calls_per_caller * plan.in_flight * plan.batch)


async def until_empty(connection: Connection, plan: Plan) -> None:
    """Acked entries are deleted, so the length says that every ack was confirmed."""
    pause_s = _POLL_S if plan.processes == 1 else _SHARED_POLL_S
    # Only the server knows, and it does not report it unasked.
    while await connection.call("XLEN", plan.stream) > plan.left:  # noqa: ASYNC110
        await asyncio.sleep(pause_s)


# ── the recorder ──────────────────────────────────────────────────────────────────────────────────


class Frame(msgspec.Struct, array_like=True):
    """One write: which connection it left on, its bytes, how many replies it waits for."""

    connection: int
    request: bytes
    reply_count: int
    # How many entries a read brought.
    entry_count: int = 0

    @property
    def is_read(self) -> bool:
        return b"\r\nXREADGROUP\r\n" in self.request[:32]


class Tape(msgspec.Struct, kw_only=True):
    """What was sent before and during the measured stretch, in order."""

    setup: list[Frame] = []
    frames: list[Frame] = []
    in_flight_max: dict[int, int] = {}

    @property
    def connection_count(self) -> int:
        return 1 + max(frame.connection for frame in (*self.setup, *self.frames))

    def save(self, path: str) -> None:
        Path(path).write_bytes(msgspec.msgpack.encode(self))

    @classmethod
    def load(cls, path: str) -> Tape:
        return msgspec.msgpack.decode(Path(path).read_bytes(), type=cls)


class Recorder:
    """Listens to every connection of this process from birth, except those that it ignores."""

    def __init__(self) -> None:
        self.tape = Tape()
        self._heard = self.tape.setup
        self._numbers: dict[Connection, int] = {}
        self._ignored: set[Connection] = set()
        self._in_flight: Counter[int] = Counter()
        self._listen()

    def ignore(self, connection: Connection) -> None:
        """Leave out a connection that belongs to the measuring itself."""
        self._ignored.add(connection)

    def start(self) -> None:
        """From now on it is the measured stretch."""
        self._heard = self.tape.frames
        self.tape.in_flight_max.clear()

    def stop(self) -> None:
        """What follows is not part of the tape."""
        self._heard = []

    def _listen(self) -> None:
        post = Connection.post

        def post_and_report(
            connection: Connection,
            request: bytes,
            reply_count: int,
            on_end: OnEnd,
            *,
            block_ms: int = 0,
        ) -> None:
            # Who waits for the bell does nothing else, and a replay has nothing to wait for.
            is_waiting = b"\r\nBLPOP\r\n" in request[:32]
            if connection not in self._ignored and not is_waiting:
                on_end = self._hear(connection, request, reply_count, on_end)
            post(connection, request, reply_count, on_end, block_ms=block_ms)

        setattr(Connection, "post", post_and_report)  # noqa: B010 - a patch, and it says so

    def _hear(
        self, connection: Connection, request: bytes, reply_count: int, on_end: OnEnd
    ) -> OnEnd:
        number = self._numbers.setdefault(connection, len(self._numbers))
        frame, heard = Frame(number, request, reply_count), self._heard
        heard.append(frame)
        self._in_flight[number] += 1
        highest = self.tape.in_flight_max
        highest[number] = max(highest.get(number, 0), self._in_flight[number])

        def ended(end: End) -> None:
            self._in_flight[number] -= 1
            # A refused call was sent again, as after a forgotten script; once is enough.
            if isinstance(end, ConnectionLost) or isinstance(end[0], StoreError):
                _remove(frame, heard)
            elif frame.is_read and (reply := end[0]):
                frame.entry_count = len(reply[0][1])
            on_end(end)

        return ended


def _remove(frame: Frame, heard: list[Frame]) -> None:
    if frame in heard:
        heard.remove(frame)
