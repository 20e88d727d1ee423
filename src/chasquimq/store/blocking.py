"""A connection for threads that wait: the same requests and replies, without an event loop."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import hiredis

from chasquimq.errors import ConnectionLost, StoreError
from chasquimq.store.address import new_blocking_connection
from chasquimq.store.connection import Part, Reply, client_errors_as_ours, pack
from chasquimq.store.script import is_forgotten, script
from chasquimq.store.server_errors import error_from_reply

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chasquimq.settings import ConnectionSettings

_READ_BYTES = 65_536


class BlockingConnection:
    """Dials when first used; after trouble the next call dials again."""

    def __init__(self, settings: ConnectionSettings, *, name: str = "") -> None:
        self._settings = settings
        self._name = name
        self._owner: Any = None
        self._owner_pid = 0
        self._reader = hiredis.Reader(replyError=error_from_reply)

    def call(self, *parts: Part) -> Reply:
        """One command, one reply; an error reply is raised."""
        return _raised(self.send(pack(parts))[0])

    def run(self, name: str, keys: Sequence[str], *args: Part) -> Reply:
        """One script call; an error reply is raised."""
        act = script(name)
        (reply,) = self.send(act.by_hash(keys, args))
        if is_forgotten(reply):
            (reply,) = self.send(act.by_text(keys, args))
        return _raised(reply)

    def send(self, request: bytes, reply_count: int = 1) -> list[Reply]:
        """Write the request and wait for its replies, error replies included."""
        with client_errors_as_ours(self._settings):
            socket = self._socket()
        try:
            socket.sendall(request)
            replies = [self._receive(socket) for _ in range(reply_count)]
        except BaseException as error:
            # A reply that comes late would be taken for the answer to the next question.
            self.close()
            if isinstance(error, OSError | hiredis.ProtocolError):
                raise ConnectionLost(f"the connection to the server broke: {error}") from error
            raise
        if self._reader.has_data():
            self.close()
        return replies

    def close(self) -> None:
        """Close; a later call dials again."""
        owner, self._owner = self._owner, None
        self._reader = hiredis.Reader(replyError=error_from_reply)
        if owner is not None:
            owner.disconnect()

    def _socket(self) -> Any:
        if self._owner is None or self._owner_pid != os.getpid():
            owner = new_blocking_connection(self._settings, name=self._name)
            owner.connect()
            self._owner, self._owner_pid = owner, os.getpid()
            self._reader = hiredis.Reader(replyError=error_from_reply)
        return self._owner._sock  # noqa: SLF001  the one private attribute we rely on

    def _receive(self, socket: Any) -> Reply:
        while (reply := self._reader.gets()) is False:
            received = socket.recv(_READ_BYTES)
            if not received:
                raise ConnectionResetError("the server closed the connection")
            self._reader.feed(received)
        return reply


def _raised(reply: Reply) -> Reply:
    if isinstance(reply, StoreError):
        raise reply
    return reply
