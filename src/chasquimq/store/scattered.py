"""The blocking connection for questions about many queues of a cluster: each goes to its node."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import hiredis

from chasquimq.store.blocking import BlockingConnection, find_masters
from chasquimq.store.connection import pack
from chasquimq.store.route import Route

if TYPE_CHECKING:
    from chasquimq.settings import ConnectionSettings
    from chasquimq.store.connection import Part, Reply

_CONNECTIONS_MAX = 16
_QUEUE = re.compile(rb"\{chasqui:(?P<queue>[^{}]+)\}")
_START = b"0"


def blocking_connection(settings: ConnectionSettings, *, name: str = "") -> BlockingConnection:
    """A connection that answers about every queue there is."""
    if settings.queue or not Route(settings).is_cluster:
        return BlockingConnection(settings, name=name)
    return ScatteredConnection(settings, name=name)


class ScatteredConnection(BlockingConnection):
    """Looks at the keys of each command, and lets a connection to their queue send it."""

    def __init__(self, settings: ConnectionSettings, *, name: str = "") -> None:
        super().__init__(settings, name=name)
        self._settings = settings
        self._by_queue: OrderedDict[str, BlockingConnection] = OrderedDict()
        self._scanned: list[BlockingConnection] = []

    def send(self, request: bytes, reply_count: int = 1) -> list[Reply]:
        """Send each command where its keys are; the replies come in the order of the commands."""
        commands = _commands(request)
        replies: list[Reply] = [None] * len(commands)
        for queue, places in _by_queue(commands).items():
            own = b"".join([pack(tuple(commands[at])) for at in places])
            answers = self._to(queue).send(own, len(places))
            for at, answer in zip(places, answers, strict=True):
                replies[at] = answer
        return replies

    def call(self, *parts: Part) -> Reply:
        """One command; a SCAN walks through one node after the other."""
        if parts[0] == "SCAN":
            return self._scan(parts)
        return super().call(*parts)

    def close(self) -> None:
        """Close; a later call dials again."""
        for connection in (*self._by_queue.values(), *self._scanned):
            connection.close()
        self._by_queue.clear()
        self._scanned.clear()
        super().close()

    def _to(self, queue: str) -> BlockingConnection:
        connection = self._by_queue.get(queue)
        if connection is None:
            while len(self._by_queue) >= _CONNECTIONS_MAX:
                self._by_queue.popitem(last=False)[1].close()
            # Without a queue any node will do.
            connection = BlockingConnection(replace(self._settings, queue=queue), name=self._name)
            self._by_queue[queue] = connection
        self._by_queue.move_to_end(queue)
        return connection

    def _scan(self, parts: Sequence[Part]) -> Reply:
        """The cursor that callers see names the node, too."""
        at, cursor = _place(parts[1])
        if not at and cursor == _START:
            self._find_nodes()
        after, keys = self._scanned[at].call(parts[0], cursor, *parts[2:])
        is_last = after == _START and at + 1 == len(self._scanned)
        if is_last:
            return [_START, keys]
        return [b"%d:%b" % ((at + 1, _START) if after == _START else (at, after)), keys]

    def _find_nodes(self) -> None:
        for connection in self._scanned:
            connection.close()
        found = find_masters(self._settings)
        self._scanned = [BlockingConnection(node, name=self._name) for node, _ in found]


def _commands(request: bytes) -> list[list[bytes]]:
    reader = hiredis.Reader()
    reader.feed(request)
    commands: list[list[bytes]] = []
    while (command := reader.gets()) is not False:
        commands.append(cast("list[bytes]", command))
    return commands


def _by_queue(commands: Sequence[Sequence[bytes]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for at, command in enumerate(commands):
        tags = (tag["queue"].decode() for part in command if (tag := _QUEUE.match(part)))
        found.setdefault(next(tags, ""), []).append(at)
    return found


def _place(cursor: Part) -> tuple[int, bytes]:
    text = cursor if isinstance(cursor, bytes) else str(cursor).encode()
    at, mark, rest = text.partition(b":")
    return (int(at), rest) if mark else (0, text)
