"""The commands of a real run of ours, recorded as they leave, for a bare client to replay."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from chasquimq.errors import ConnectionLost, StoreError
from chasquimq.store.connection import Connection

if TYPE_CHECKING:
    from chasquimq.store.connection import End, OnEnd


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
    """Listens to every connection of this process from birth, except those it is told to ignore."""

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

        def post_and_tell(
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

        setattr(Connection, "post", post_and_tell)  # noqa: B010 - a patch, and it says so

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
