"""The ways to all servers behind one URL: a link to each queue, and one to each master."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from chasquimq.store.connection import Part, Reply, pack
from chasquimq.store.dialling import find_masters
from chasquimq.store.link import Link
from chasquimq.store.route import Range, Route, slot_of
from chasquimq.store.server_errors import is_worth_asking_again

if TYPE_CHECKING:
    from chasquimq.settings import ConnectionSettings

_LINKS_MAX = 16
# Heavy answers are asked for in portions that nobody has to wait for.
_QUEUES_PER_WRITE = 50
Questions = Sequence[tuple["Part", ...]]


class Master(NamedTuple):
    """A server that holds a part of the data; `ranges` are its slots, none outside of clusters."""

    link: Link
    address: str
    ranges: list[Range]

    def holds(self, queue: str) -> bool:
        slot = slot_of(queue)
        return not self.ranges or any(first <= slot <= last for first, last, _ in self.ranges)


class Links:
    """One link where there is one server; in a cluster one for each queue that is asked about."""

    def __init__(self, settings: ConnectionSettings, *, name: str) -> None:
        self._settings = settings
        self._name = name
        self._open: OrderedDict[str, Link] = OrderedDict()
        self.is_cluster = Route(settings).is_cluster

    async def of(self, queue: str) -> Link:
        """The link to the server of a queue; the ones not used for longest make room."""
        place = queue if self.is_cluster else ""
        link = self._open.get(place)
        if link is None:
            while len(self._open) >= _LINKS_MAX:
                await self._open.popitem(last=False)[1].close()
            link = Link(replace(self._settings, queue=queue), name=self._name)
            self._open[place] = link
        self._open.move_to_end(place)
        return link

    @asynccontextmanager
    async def masters(self) -> AsyncGenerator[list[Master]]:
        """Links to every master, open for as long as they are needed."""
        found = await find_masters(Route(self._settings))
        masters = [self._master(settings, ranges) for settings, ranges in found]
        try:
            yield masters
        finally:
            for master in masters:
                await master.link.close()

    async def ask_each(self, asked: Sequence[tuple[str, Questions]]) -> list[list[Reply]]:
        """Questions about many queues, in few round trips; the answers come in their order."""
        if not self.is_cluster:
            return await self._ask_one_server(asked)
        found: dict[str, list[Reply]] = {}
        async with self.masters() as masters:
            for master in masters:
                own = [(queue, questions) for queue, questions in asked if master.holds(queue)]
                found |= await self._ask_node(master.link, own)
        return [await self._settled(found.get(queue), queue, some) for queue, some in asked]

    async def close(self) -> None:
        for link in self._open.values():
            await link.close()

    def _master(self, settings: ConnectionSettings, ranges: list[Range]) -> Master:
        address = str(ranges[0][2]) if ranges else ""
        return Master(Link(settings, name=self._name), address, ranges)

    async def _ask_one_server(self, asked: Sequence[tuple[str, Questions]]) -> list[list[Reply]]:
        link, found = await self.of(""), list[list[Reply]]()
        for part in _portions(asked):
            found += _sorted_out(part, await link.ask(*_spelled(part)))
        return found

    async def _ask_node(
        self, link: Link, asked: Sequence[tuple[str, Questions]]
    ) -> dict[str, list[Reply]]:
        found: dict[str, list[Reply]] = {}
        for part in _portions(asked):
            connection = await link.connection()
            replies = _sorted_out(part, await connection.send(*_spelled(part)))
            found |= dict(zip([queue for queue, _ in part], replies, strict=True))
        return found

    async def _settled(
        self, replies: list[Reply] | None, queue: str, questions: Questions
    ) -> list[Reply]:
        """The answers; a queue that moved in between, or is on its way, is asked alone."""
        if replies is not None and not any(map(is_worth_asking_again, replies)):
            return replies
        return await (await self.of(queue)).ask(*_spelled([(queue, questions)]))


def _portions(asked: Sequence[tuple[str, Questions]]) -> list[Sequence[tuple[str, Questions]]]:
    return [asked[at : at + _QUEUES_PER_WRITE] for at in range(0, len(asked), _QUEUES_PER_WRITE)]


def _spelled(asked: Sequence[tuple[str, Questions]]) -> tuple[bytes, int]:
    spelled = [pack(question) for _, questions in asked for question in questions]
    return b"".join(spelled), len(spelled)


def _sorted_out(
    asked: Sequence[tuple[str, Questions]], replies: Sequence[Reply]
) -> list[list[Reply]]:
    left = iter(replies)
    return [list(islice(left, len(questions))) for _, questions in asked]
