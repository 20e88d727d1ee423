"""Sends questions about queues of a cluster to the node of each, in threads and in event loops."""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, cast

import hiredis

from chasquimq.errors import ServerUnreachable, StoreError
from chasquimq.model.chunks import in_chunks
from chasquimq.store.net.blocking import BlockingConnection, find_masters_blocking
from chasquimq.store.net.connect import DialRefusals, find_masters
from chasquimq.store.net.connection import Part, Reply, pack
from chasquimq.store.net.errors import is_worth_asking_again
from chasquimq.store.net.reconnect import ReconnectingConnection
from chasquimq.store.net.route import Range, Route, slot_of

if TYPE_CHECKING:
    from chasquimq.settings import ConnectionSettings

_CONNECTIONS_MAX = 16
_QUEUE = re.compile(rb"\{chasqui:(?P<queue>[^{}]+)\}")
_START = b"0"


def blocking_connection(settings: ConnectionSettings, *, name: str = "") -> BlockingConnection:
    """A connection that answers about every queue there is."""
    if settings.queue or not Route(settings).is_cluster:
        return BlockingConnection(settings, name=name)
    return BlockingClusterConnection(settings, name=name)


class BlockingClusterConnection(BlockingConnection):
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
        found = find_masters_blocking(self._settings)
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


# One that is not open costs little, and a caller may still hold it.
_KEPT_MAX = 256
# Heavy answers are asked for in portions that others need not wait for.
_QUEUES_PER_WRITE = 50
Questions = Sequence[tuple["Part", ...]]
# The replies about a queue, or why there are none.
Answers = list[Reply] | StoreError


class Master(NamedTuple):
    """A server that holds a part of the data; `ranges` are its slots, none outside of clusters."""

    connection: ReconnectingConnection
    address: str
    ranges: list[Range]

    def holds(self, queue: str) -> bool:
        slot = slot_of(queue)
        return not self.ranges or any(first <= slot <= last for first, last, _ in self.ranges)


class ClusterConnections:
    """One connection to a single server; in a cluster one for each queue that is asked about."""

    def __init__(self, settings: ConnectionSettings, *, name: str) -> None:
        self._settings = settings
        self._patience_s = settings.command_timeout_ms / 1000
        self._name = name
        self._login = DialRefusals()
        self._open: OrderedDict[str, ReconnectingConnection] = OrderedDict()
        self._route = Route(settings)

    @property
    def is_cluster(self) -> bool:
        return self._route.is_cluster

    async def of(self, queue: str) -> ReconnectingConnection:
        """The connection to the server of a queue; the ones not used for longest make room."""
        place = queue if self.is_cluster else ""
        connection = self._open.get(place)
        if connection is None:
            # Known before anything is waited for: callers at once share it.
            connection = self._open[place] = self._new(replace(self._settings, queue=queue))
        self._open.move_to_end(place)
        await self._make_room(connection)
        return connection

    @asynccontextmanager
    async def masters(self) -> AsyncGenerator[list[Master]]:
        """Connections to every master, open for as long as they are needed."""
        found = await self._find_masters()
        masters = [self._master(settings, ranges) for settings, ranges in found]
        try:
            yield masters
        finally:
            for master in masters:
                await master.connection.close()

    async def ask_each(self, asked: Sequence[tuple[str, Questions]]) -> list[Answers]:
        """Questions about many queues, in few round trips; the answers come in their order.

        In a cluster a master that is away is an error for each of its queues, and for no other.
        """
        if not self.is_cluster:
            return await self._ask_one_server(asked)
        found: dict[str, Answers] = {}
        async with self.masters() as masters:
            # All at once: one that is away must not use up the time of the others.
            for answers in await asyncio.gather(*(
                self._ask_node(master.connection, [one for one in asked if master.holds(one[0])])
                for master in masters
            )):  # fmt: skip
                found |= answers
        return [await self._settled(found.get(queue), queue, some) for queue, some in asked]

    async def close(self) -> None:
        for connection in list(self._open.values()):
            await connection.close()

    async def _make_room(self, wanted: ReconnectingConnection) -> None:
        """Hang up what was not used for longest, unless it waits for an answer; its callers dial again."""
        others = [
            (place, connection)
            for place, connection in self._open.items()
            if connection is not wanted
        ]
        open_ones = [connection for _, connection in others if connection.is_up]
        for place, connection in others[: max(0, len(self._open) - _KEPT_MAX)]:
            if connection.is_idle:
                del self._open[place]
                await connection.close()
        for connection in open_ones[: max(0, len(open_ones) + 1 - _CONNECTIONS_MAX)]:
            if connection.is_idle:
                await connection.hang_up()

    async def _find_masters(self) -> list[tuple[ConnectionSettings, list[Range]]]:
        self._login.check()
        route = Route(self._settings)
        try:
            async with asyncio.timeout(self._patience_s):
                found = await find_masters(route)
        except TimeoutError:
            raise self._silence(route) from None
        except StoreError as error:
            self._login.note(error)
            raise
        self._login.clear()
        return found

    def _master(self, settings: ConnectionSettings, ranges: list[Range]) -> Master:
        address = str(ranges[0][2]) if ranges else ""
        return Master(self._new(settings), address, ranges)

    def _new(self, settings: ConnectionSettings) -> ReconnectingConnection:
        return ReconnectingConnection(settings, name=self._name, patience_s=self._patience_s)

    async def _ask_one_server(self, asked: Sequence[tuple[str, Questions]]) -> list[Answers]:
        connection, found = await self.of(""), list[Answers]()
        for part in _portions(asked):
            found += _sorted_out(part, await connection.ask(*_request(part)))
        return found

    async def _ask_node(
        self, reconnecting: ReconnectingConnection, asked: Sequence[tuple[str, Questions]]
    ) -> dict[str, Answers]:
        found: dict[str, Answers] = {}
        for part in _portions(asked):
            try:
                async with asyncio.timeout(self._patience_s):
                    connection = await reconnecting.connection()
                    replies = _sorted_out(part, await connection.send(*_request(part)))
            except TimeoutError:
                return {queue: self._silence(reconnecting) for queue, _ in asked} | found
            except StoreError as error:
                return {queue: error for queue, _ in asked} | found
            found |= zip([queue for queue, _ in part], replies, strict=True)
        return found

    def _silence(self, asked: ReconnectingConnection | Route) -> ServerUnreachable:
        address = asked.address if isinstance(asked, ReconnectingConnection) else asked
        return ServerUnreachable(
            f"the server at {address} must answer within {self._patience_s:g} s and did not; "
            "is it running?"
        )

    async def _settled(self, answers: Answers | None, queue: str, questions: Questions) -> Answers:
        """The answers; a queue that moved in between, or is on its way, is asked alone."""
        if isinstance(answers, StoreError):
            return answers
        if answers is not None and not any(map(is_worth_asking_again, answers)):
            return answers
        try:
            return await (await self.of(queue)).ask(*_request([(queue, questions)]))
        except StoreError as error:
            return error


def _portions(asked: Sequence[tuple[str, Questions]]) -> list[Sequence[tuple[str, Questions]]]:
    # Nearly always it is one queue.
    return list(in_chunks(asked, _QUEUES_PER_WRITE)) if len(asked) != 1 else [asked]


def _request(asked: Sequence[tuple[str, Questions]]) -> tuple[bytes, int]:
    requests = [pack(question) for _, questions in asked for question in questions]
    return b"".join(requests), len(requests)


def _sorted_out(
    asked: Sequence[tuple[str, Questions]], replies: Sequence[Reply]
) -> list[list[Reply]]:
    left = iter(replies)
    return [list(islice(left, len(questions))) for _, questions in asked]
