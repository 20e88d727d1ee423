"""The limit: a bare client replays our recorded commands and does nothing else.

No encoding, no decoding, no handler, no books; the same commands in the same batches on as many
connections, with as many of them on the wire at once.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, cast

import hiredis
import msgspec

from chasquimq.bench.tape import Frame, Tape
from chasquimq.bench.timing import Stopwatch, Stretch, until_empty
from chasquimq.settings import ConnectionSettings
from chasquimq.store.address import new_async_connection
from chasquimq.store.connection import Connection, Reply, open_connection, pack

if TYPE_CHECKING:
    from chasquimq.bench.scenario import Plan

_ENTRY_ID = re.compile(rb"\d+-\d+")


async def add(plan: Plan) -> Stretch:
    """Write the recorded adds, with as many unanswered as ours had."""
    tape = Tape.load(plan.tape)
    (connection,) = await _open(plan, tape)
    replay = _AddReplay(connection, tape)
    watch = Stopwatch()
    await replay.run()
    stretch = watch.stop(plan.calls_per_caller * plan.in_flight * plan.batch)
    await connection.close()
    return stretch


async def consume(plan: Plan) -> Stretch:
    """Read and ack in the recorded batches, with the entry ids that this run's reads bring."""
    tape = Tape.load(plan.tape)
    observer = await open_connection(ConnectionSettings(url=plan.url))
    connections = await _open(plan, tape)
    replay = _ConsumeReplay(connections, tape, plan.jobs)
    watch = Stopwatch()
    await replay.run()
    await until_empty(observer, plan)
    stretch = watch.stop(plan.jobs)
    for connection in (observer, *connections):
        await connection.close()
    return stretch


class _Bare(Connection):
    """Hands replies over as they come; nobody waits for one in particular."""

    on_replies: Callable[[list[Reply]], None] | None = None

    def write(self, request: bytes) -> None:
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        if self.on_replies is None:
            super().data_received(data)
            return
        reader, replies = self._reader, list[Reply]()
        reader.feed(data)
        while (reply := reader.gets()) is not False:
            replies.append(reply)
        self.on_replies(replies)


async def _open(plan: Plan, tape: Tape) -> list[_Bare]:
    connections: list[_Bare] = []
    settings = ConnectionSettings(url=plan.url)
    for _ in range(tape.connection_count):
        owner = new_async_connection(settings)
        await owner.connect()
        connections.append(_Bare(owner, settings.command_timeout_ms))
    for frame in tape.setup:
        await connections[frame.connection].send(frame.request, frame.reply_count)
    return connections


class _AddReplay:
    """A write leaves when an earlier one has all its replies."""

    def __init__(self, connection: _Bare, tape: Tape) -> None:
        self._connection = connection
        self._frames = iter(tape.frames)
        self._in_flight_max = tape.in_flight_max[0]
        self._due: deque[int] = deque()
        self._reply_count = 0
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        self._connection.on_replies = self._answered
        for _ in range(self._in_flight_max):
            self._write_next()
        await self._done

    def _answered(self, replies: list[Reply]) -> None:
        self._reply_count += len(replies)
        while self._due and self._reply_count >= self._due[0]:
            self._reply_count -= self._due.popleft()
            self._write_next()
        if not self._due:
            self._done.set_result(None)

    def _write_next(self) -> None:
        frame = next(self._frames, None)
        if frame is not None:
            self._due.append(frame.reply_count)
            self._connection.write(frame.request)


class _Read(msgspec.Struct, frozen=True):
    connection: int
    request: bytes
    count: int


class _Ack(msgspec.Struct, frozen=True):
    """`head` and then as many ids; a command without ids is sent as it was."""

    connection: int
    head: list[bytes]
    id_count: int


class _ConsumeReplay:
    """Reads run ahead of acks as far as they did in the recording, never further."""

    def __init__(self, connections: list[_Bare], tape: Tape, jobs: int) -> None:
        steps = [_step(frame) for frame in tape.frames]
        self._connections = connections
        self._reads = deque(step for step in steps if isinstance(step, _Read))
        self._acks = deque(step for step in steps if isinstance(step, _Ack))
        self._ahead_max = _ahead_max(steps)
        self._unread = sum(ack.id_count for ack in self._acks)
        assert self._unread == jobs, f"the recording acks {self._unread} of {jobs} jobs"
        self._acks_in_flight_max = tape.in_flight_max[self._acks[0].connection]
        self._acks_in_flight = 0
        self._is_reading = False
        self._ahead = 0
        self._ids: deque[bytes] = deque()
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        for read in self._reads:
            self._connections[read.connection].on_replies = self._read
        for ack in self._acks:
            self._connections[ack.connection].on_replies = self._acked
        self._move()
        await self._done

    def _read(self, replies: list[Reply]) -> None:
        self._is_reading = False
        for reply in replies:
            if reply:
                entries = reply[0][1]
                self._ids.extend([entry[0] for entry in entries])
                self._unread -= len(entries)
                self._ahead += len(entries)
        self._move()

    def _acked(self, replies: list[Reply]) -> None:
        self._acks_in_flight -= len(replies)
        if not self._acks and not self._acks_in_flight:
            self._done.set_result(None)
            return
        self._move()

    def _move(self) -> None:
        self._ack_next()
        # The recording ends with a read that waits for more jobs; there are none.
        if self._is_reading or self._unread <= 0:
            return
        read = self._reads[0]
        if self._ahead + read.count <= self._ahead_max:
            if len(self._reads) > 1:
                self._reads.popleft()
            self._is_reading = True
            self._connections[read.connection].write(read.request)

    def _ack_next(self) -> None:
        acks, ids = self._acks, self._ids
        while acks and self._acks_in_flight < self._acks_in_flight_max:
            ack = acks[0]
            if len(ids) < ack.id_count:
                return
            acks.popleft()
            taken = [ids.popleft() for _ in range(ack.id_count)]
            self._connections[ack.connection].write(pack((*ack.head, *taken)))
            self._acks_in_flight += 1
            self._ahead -= ack.id_count


def _step(frame: Frame) -> _Read | _Ack:
    parts = _parts(frame.request)
    if parts[0] == b"XREADGROUP":
        return _Read(frame.connection, frame.request, int(parts[parts.index(b"COUNT") + 1]))
    head_size = len(parts)
    while _ENTRY_ID.fullmatch(parts[head_size - 1]):
        head_size -= 1
    return _Ack(frame.connection, parts[:head_size], len(parts) - head_size)


def _parts(request: bytes) -> list[bytes]:
    reader = hiredis.Reader()
    reader.feed(request)
    return cast("list[bytes]", reader.gets())


def _ahead_max(steps: Iterable[_Read | _Ack]) -> int:
    ahead = highest = 0
    for step in steps:
        ahead += step.count if isinstance(step, _Read) else -step.id_count
        highest = max(highest, ahead)
    return highest
