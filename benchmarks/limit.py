"""The limit: a bare client replays our recorded commands and does nothing else.

No encoding, no decoding, no handler, no books, no pauses; the same commands in the same batches on
as many connections, with as many of them on the wire at once.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import hiredis
import msgspec

from benchmarks.instruments import Frame, Stopwatch, Stretch, Tape, until_empty
from chasquimq.errors import StoreError
from chasquimq.settings import ConnectionSettings
from chasquimq.store.net.address import new_async_connection
from chasquimq.store.net.connect import open_connection
from chasquimq.store.net.connection import Connection, Reply

if TYPE_CHECKING:
    from benchmarks.scenario import Plan

OnReplies = Callable[[list[Reply]], None]
# An entry id that is an argument of its own.
_ENTRY_ID = re.compile(rb"\$\d+\r\n(\d+-\d+)\r\n")
_COUNT = re.compile(rb"\r\nCOUNT\r\n\$\d+\r\n(\d+)\r\n")


class BareConnection(Connection):
    """Answers like any other until a reader listens to all that comes."""

    _on_replies: OnReplies | None = None

    def listen(self, on_replies: OnReplies, on_refusal: Callable[[str], Exception]) -> None:
        self._on_replies = on_replies
        self._reader = hiredis.Reader(replyError=on_refusal)

    def write(self, request: bytes) -> None:
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        if self._on_replies is None:
            super().data_received(data)
            return
        reader, replies = self._reader, list[Reply]()
        reader.feed(data)
        while (reply := reader.gets()) is not False:
            replies.append(reply)
        self._on_replies(replies)


async def open_as_recorded(plan: Plan, tape: Tape) -> list[BareConnection]:
    """As many connections as ours had, prepared as ours were."""
    connections: list[BareConnection] = []
    settings = ConnectionSettings(url=plan.url)
    for _ in range(tape.connection_count):
        owner = new_async_connection(settings)
        await owner.connect()
        connections.append(BareConnection(owner, settings.command_timeout_ms))
    for frame in tape.setup:
        await connections[frame.connection].send(frame.request, frame.reply_count)
    return connections


class End:
    """Comes when everything is answered, or with the first refusal."""

    def __init__(self) -> None:
        self._future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def wait(self) -> None:
        await self._future

    def reached(self) -> None:
        if not self._future.done():
            self._future.set_result(None)

    def refused(self, text: str) -> Exception:
        error = StoreError(f"the server must take what it took before, it says: {text}")
        if not self._future.done():
            self._future.set_exception(error)
        return error


class Lane:
    """The writes of one connection, with no more of them unanswered than ours had."""

    def __init__(self, connection: BareConnection, in_flight_max: int) -> None:
        self._connection = connection
        self._in_flight_max = in_flight_max
        self._due: deque[int] = deque()
        self._reply_count = 0

    @property
    def has_room(self) -> bool:
        return len(self._due) < self._in_flight_max

    @property
    def is_idle(self) -> bool:
        return not self._due

    def listen(self, on_replies: OnReplies, end: End) -> None:
        def answered(replies: list[Reply]) -> None:
            self._reply_count += len(replies)
            while self._due and self._reply_count >= self._due[0]:
                self._reply_count -= self._due.popleft()
            on_replies(replies)

        self._connection.listen(answered, end.refused)

    def write(self, request: bytes, reply_count: int) -> None:
        self._due.append(reply_count)
        self._connection.write(request)


# ── the replay ────────────────────────────────────────────────────────────────────────────────────


async def add(plan: Plan) -> Stretch:
    """Write the recorded adds, with as many unanswered as ours had."""
    tape = Tape.load(plan.tape)
    (connection,) = await open_as_recorded(plan, tape)
    replay = _AddReplay(connection, tape)
    watch = Stopwatch()
    await replay.run()
    stretch = watch.stop(plan.calls_per_caller * plan.in_flight * plan.batch)
    await connection.close()
    return stretch


async def consume(plan: Plan) -> Stretch:
    """Read, ack, retry and promote as recorded, with the entry ids that this run's reads bring."""
    tape = Tape.load(plan.tape)
    observer = await open_connection(ConnectionSettings(url=plan.url))
    connections = await open_as_recorded(plan, tape)
    replay = _ConsumeReplay(connections, tape, plan.jobs * plan.work.runs_per_job)
    watch = Stopwatch()
    await replay.run()
    await until_empty(observer, plan)
    stretch = watch.stop(plan.jobs)
    for connection in (observer, *connections):
        await connection.close()
    return stretch


class _AddReplay:
    """A write leaves when an earlier one has all its replies."""

    def __init__(self, connection: BareConnection, tape: Tape) -> None:
        self._frames = deque(tape.frames)
        self._lane = Lane(connection, tape.in_flight_max[0])
        self._end = End()

    async def run(self) -> None:
        self._lane.listen(self._move, self._end)
        self._move([])
        await self._end.wait()

    def _move(self, _replies: list[Reply]) -> None:
        frames, lane = self._frames, self._lane
        while frames and lane.has_room:
            frame = frames.popleft()
            lane.write(frame.request, frame.reply_count)
        if lane.is_idle:
            self._end.reached()


class _Read(msgspec.Struct, frozen=True):
    connection: int
    request: bytes
    count: int
    entry_count: int


class _Write(msgspec.Struct, frozen=True):
    """A request cut at its entry ids; `slots` says which of the ids read go there."""

    connection: int
    pieces: list[bytes]
    slots: list[int]
    reply_count: int
    # How many ids must have been read before, and how many of them no write named before.
    id_count: int
    new_id_count: int


class _ConsumeReplay:
    """Writes keep their order; reads run ahead of them as far as they did in the recording."""

    def __init__(self, connections: list[BareConnection], tape: Tape, deliveries: int) -> None:
        steps = list(_steps(tape.frames))
        self._reads = deque(step for step in steps if isinstance(step, _Read))
        self._writes = deque(step for step in steps if isinstance(step, _Write))
        self._ahead_max = _ahead_max(steps)
        self._unread = self._writes[-1].id_count
        assert self._unread == deliveries, f"the tape ends {self._unread} of {deliveries} runs"
        self._lanes = {
            number: Lane(connections[number], most) for number, most in tape.in_flight_max.items()
        }
        self._reading = self._lanes[self._reads[0].connection]
        self._ahead = 0
        self._ids: list[bytes] = []
        self._end = End()

    async def run(self) -> None:
        for lane in self._lanes.values():
            lane.listen(self._read if lane is self._reading else self._written, self._end)
        self._move()
        await self._end.wait()

    def _read(self, replies: list[Reply]) -> None:
        for reply in replies:
            if reply:
                entries = reply[0][1]
                self._ids += [b"$%d\r\n%b\r\n" % (len(one[0]), one[0]) for one in entries]
                self._unread -= len(entries)
                self._ahead += len(entries)
        self._move()

    def _written(self, _replies: list[Reply]) -> None:
        self._move()
        writing = (lane for lane in self._lanes.values() if lane is not self._reading)
        if not self._writes and all(lane.is_idle for lane in writing):
            self._end.reached()

    def _move(self) -> None:
        is_starved = self._write_next()
        # The recording ends with a read that waits for more jobs; there are none.
        if not self._reading.is_idle or self._unread <= 0:
            return
        read = self._reads[0]
        # A call that waits for ids needs a read, even if those before brought less than recorded.
        if is_starved or self._ahead + read.count <= self._ahead_max:
            if len(self._reads) > 1:
                self._reads.popleft()
            self._reading.write(read.request, 1)

    def _write_next(self) -> bool:
        """Write what can be written; True: the next write waits for ids."""
        writes, ids = self._writes, self._ids
        while writes:
            write = writes[0]
            if write.id_count > len(ids):
                return True
            lane = self._lanes[write.connection]
            if not lane.has_room:
                return False
            writes.popleft()
            write.pieces[1::2] = [ids[slot] for slot in write.slots]
            lane.write(b"".join(write.pieces), write.reply_count)
            self._ahead -= write.new_id_count
        return False


def _steps(frames: Sequence[Frame]) -> Iterator[_Read | _Write]:
    slots: dict[bytes, int] = {}
    for frame in frames:
        if frame.is_read:
            (count,) = _COUNT.findall(frame.request)
            yield _Read(frame.connection, frame.request, int(count), frame.entry_count)
            continue
        known = len(slots)
        pieces = _ENTRY_ID.split(frame.request)
        named = [slots.setdefault(entry_id, len(slots)) for entry_id in pieces[1::2]]
        new = len(slots) - known
        yield _Write(frame.connection, pieces, named, frame.reply_count, len(slots), new)


def _ahead_max(steps: Sequence[_Read | _Write]) -> int:
    """What ours had read and not yet passed on, and what it asked for on top, at its highest."""
    ahead = highest = 0
    for step in steps:
        if isinstance(step, _Read):
            highest = max(highest, ahead + step.count)
            ahead += step.entry_count
        else:
            ahead -= step.new_id_count
    return highest
