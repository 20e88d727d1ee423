"""Finds the server to dial: the one a URL names, the master Sentinels know, or the owner of a slot.

Nothing is sent from here: a search says which server to ask what, and gets the answers.
"""

from __future__ import annotations

import re
from binascii import crc_hqx
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from chasquimq.errors import ServerRefused, ServerUnreachable, StoreError
from chasquimq.server import finder
from chasquimq.store.net.address import check_tls, looked_up, shown_server, url_of
from chasquimq.store.net.topology import Node, Topology, TopologyKind, parse_topology, redact
from chasquimq.wire.keys import QueueKeys

if TYPE_CHECKING:
    from chasquimq.settings import ConnectionSettings
    from chasquimq.store.net.connection import Part, Reply

SLOT_COUNT = 16_384
_HINTS = {
    TopologyKind.SENTINEL: (
        "start them, or correct the Sentinels, sentinel_password or the master's name in the URL"
    ),
    TopologyKind.CLUSTER: (
        "start them, correct the nodes in the URL, see CLUSTER INFO, or use redis:// for one server"
    ),
}
_RIGHTS = frozenset({"NOAUTH", "WRONGPASS", "NOPERM"})
_SEEDS_MAX = 16
# One seed that is gone must not cost the time of all.
_SEED_MS_MIN = 500
_SILENCE = re.compile(r"found none \((?P<cause>.*)\); ")
_MOVED = re.compile(r"MOVED \d+ (?P<host>\S*):(?P<port>\d+)")


class Question(NamedTuple):
    """One command for one server; the answer is a reply or the error that came instead."""

    settings: ConnectionSettings
    command: tuple[Part, ...]


FoundT = TypeVar("FoundT")
Asking = Generator[Question, "Reply | StoreError", FoundT]
# The first and the last slot of a range, and the master that holds it.
Range = tuple[int, int, Node]


class Route:
    """Finds the server of one connection, again for every dial."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self._turn = 0
        self._lookup = settings.lookup if settings.url is None else None
        self._found: finder.Found | None = None
        if settings.url is not None:
            self._lead_to(settings)
        elif self._lookup is None:
            self._lookup = finder.ServerLookup()
            settings = replace(settings, lookup=self._lookup)
        self._asked = settings

    def __str__(self) -> str:
        self._know()
        return redact(self._url)

    @property
    def is_cluster(self) -> bool:
        self._know()
        return self._topology is not None and self._topology.kind is TopologyKind.CLUSTER

    @property
    def needs_role(self) -> bool:
        """Whether what was found must be asked if it leads, because a Sentinel may be behind."""
        return self._topology is not None and self._topology.kind is TopologyKind.SENTINEL

    def search(self) -> Asking[ConnectionSettings]:
        """Ask until a server knows; the answer names one server."""
        if self._lookup is not None:
            self._follow(self._lookup.again())
        topology = self._topology
        if topology is None:
            return self._settings
        self._node, self._moved_to = self._moved_to, None
        if self._node is None:
            self._node = yield from self._ask(topology, self._wanted)
        return self._at(topology, self._node)

    def masters(self) -> Asking[list[tuple[ConnectionSettings, list[Range]]]]:
        """Every server that holds a part of the data, with its slots."""
        self._know()
        topology = self._topology
        if topology is None or topology.kind is not TopologyKind.CLUSTER:
            return [((yield from self.search()), [])]
        ranges = yield from self._ask(topology, _ranges)
        nodes = dict.fromkeys(node for _, _, node in ranges)
        return [
            (self._at(topology, node), [one for one in ranges if one[2] == node]) for node in nodes
        ]

    def opened(self) -> None:
        """What was searched for is reached: a server that was looked up stays the one."""
        if self._lookup is not None and self._found is not None:
            self._lookup.keep(self._found)

    def on_error(self, error: StoreError) -> None:
        """Remember where a node says that a slot has moved."""
        moved = _MOVED.search(str(error)) if is_moved(error) and self.is_cluster else None
        if moved is not None:
            # An empty host is the one that was asked.
            host = moved["host"].strip("[]") or (self._node.host if self._node else "")
            self._moved_to = Node(host, int(moved["port"])) if host else None

    def check_role(self, reply: Reply) -> None:
        """Refuse a server that does not lead; a user that may not ask gets it with the first write."""
        if isinstance(reply, StoreError) or reply[0] == b"master":
            return
        raise ServerRefused(
            f"READONLY the server at {self._node} must lead, its role is {reply[0].decode()}; "
            "the Sentinels will soon know which one does",
            code="READONLY",
        )

    def _know(self) -> None:
        """Know some server, without looking again where one was looked up before."""
        if self._lookup is not None:
            self._follow(self._lookup.found)

    def _follow(self, found: finder.Found) -> None:
        if found != self._found:
            self._lead_to(looked_up(self._asked, found))
            self._found = found

    def _lead_to(self, settings: ConnectionSettings) -> None:
        check_tls(settings)
        self._settings = settings
        self._url = url_of(settings)
        self._topology = parse_topology(self._url)
        self._known: tuple[Node, ...] = ()
        # The node that was found last, and the one that it sent us to.
        self._node: Node | None = None
        self._moved_to: Node | None = None

    def _ask(
        self, topology: Topology, read: Callable[[Reply, Node], FoundT | None]
    ) -> Asking[FoundT]:
        command = _command(topology)
        error: StoreError | None = None
        for seed in self._seeds(topology):
            reply = yield Question(self._at_seed(topology, seed), command)
            if isinstance(reply, StoreError):
                # One that refuses us says more than one that is silent.
                error = error if error and _is_refusal(error) else reply
                continue
            found = read(reply, seed)
            if found is not None:
                return found
        raise self._none_answered(topology, error)

    def _wanted(self, reply: Reply, seed: Node) -> Node | None:
        if not self.is_cluster:
            return Node(reply[0].decode(), int(reply[1])) if reply else None
        ranges = _ranges(reply, seed) or []
        self._known = tuple(dict.fromkeys(node for _, _, node in ranges))
        if not self._settings.queue:
            return self._known[0] if self._known else None
        slot = slot_of(self._settings.queue)
        return next((node for first, last, node in ranges if first <= slot <= last), None)

    def _seeds(self, topology: Topology) -> list[Node]:
        # Another one begins each time: the first may be cut off and not know it.
        turn = self._turn % len(topology.seeds)
        self._turn += 1
        seeds = (*topology.seeds[turn:], *topology.seeds[:turn], *self._known)
        return list(dict.fromkeys(seeds))[:_SEEDS_MAX]

    def _at(self, topology: Topology, node: Node) -> ConnectionSettings:
        return replace(self._settings, url=topology.node_url(node))

    def _at_seed(self, topology: Topology, seed: Node) -> ConnectionSettings:
        limit_ms = self._settings.connect_timeout_ms
        seed_ms = min(limit_ms, max(_SEED_MS_MIN, limit_ms // len(topology.seeds)))
        provider = self._settings.credential_provider if self.is_cluster else None
        return replace(
            self._settings,
            url=topology.seed_url(seed),
            credential_provider=provider,
            connect_timeout_ms=seed_ms,
            command_timeout_ms=seed_ms,
        )

    def _none_answered(self, topology: Topology, error: StoreError | None) -> StoreError:
        message = (
            f"one of {shown_server(self._settings)} must know {self._goal(topology)}, found none "
            f"({_reason(error)}); {_HINTS[topology.kind]}"
        )
        if isinstance(error, ServerRefused) and _is_refusal(error):
            return ServerRefused(message, code=error.code)
        return ServerUnreachable(message)

    def _goal(self, topology: Topology) -> str:
        if topology.kind is TopologyKind.SENTINEL:
            return f"the master {topology.service!r}"
        queue = self._settings.queue
        return f"the node of queue {queue!r}" if queue else "the nodes of their cluster"


def slot_of(queue: str) -> int:
    """The slot of a cluster that all keys of a queue are in."""
    tag = QueueKeys(queue).stream.partition("{")[2].partition("}")[0]
    return crc_hqx(tag.encode(), 0) % SLOT_COUNT


def is_moved(error: StoreError) -> bool:
    """Whether a node of a cluster says that another one has the key."""
    return isinstance(error, ServerRefused) and error.code == "MOVED"


def _is_refusal(error: StoreError) -> bool:
    return isinstance(error, ServerRefused) and error.code in _RIGHTS


def _reason(error: StoreError | None) -> str:
    if error is None:
        return "none knows it"
    # Of a server that does not answer, all but the cause is about that one server.
    silence = _SILENCE.search(str(error))
    return silence["cause"] if silence else str(error).rstrip(".")


def _command(topology: Topology) -> tuple[Part, ...]:
    if topology.kind is TopologyKind.CLUSTER:
        return ("CLUSTER", "SLOTS")
    return ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", topology.service)


def _ranges(reply: Reply, seed: Node) -> list[Range] | None:
    """The slots and their masters; a node without a name of its own is the one that was asked."""
    ranges: list[Range] = []
    for first, last, master, *_ in reply:
        host = (master[0] or b"").decode()
        ranges.append((first, last, Node(seed.host if host in ("", "?") else host, master[1])))
    return ranges or None
