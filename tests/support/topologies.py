"""Servers that belong together: a primary with its replica, Sentinels, a cluster of three."""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from shutil import rmtree
from typing import Self
from urllib.parse import urlsplit

from chasquimq.errors import ServerRefused, StoreError
from chasquimq.server.launch import SessionServer, bundled_binary
from chasquimq.server.probe import free_port
from chasquimq.settings import ConnectionSettings
from chasquimq.store.net.connect import open_connection
from chasquimq.store.net.route import SLOT_COUNT, slot_of
from support.faultproxy import FaultProxy
from support.servers import ServerKind
from support.waiting import eventually

MASTER = "mymaster"
# The shell dies with whoever holds its stdin, and takes the Sentinel along.
_TIED = '"$@" </dev/null >"$0" 2>&1 & read -r _; kill -9 0'
_MIGRATE_MS = 5_000


async def tell(url: str, *parts):
    """One command on a connection of its own."""
    connection = await open_connection(ConnectionSettings(url=url))
    try:
        return await connection.call(*parts)
    finally:
        await connection.close()


async def info(url: str, section: str) -> dict[str, str]:
    lines = (await tell(url, "INFO", section)).decode().splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def port_of(url: str) -> int:
    return urlsplit(url).port


class Switch(FaultProxy):
    """One address whose server can be exchanged, as a name or a load balancer is."""

    def lead_to(self, url: str) -> None:
        """Send those who dial from now on elsewhere."""
        self._target = urlsplit(url)


class ReplicaPair:
    """A primary, and a replica that follows it over a wire that can be cut.

    Clients use `url`, which leads to the primary until `promote`.
    """

    def __init__(self, kind: ServerKind) -> None:
        self._kind = kind
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        # A replica begins to follow at once instead of waiting for others to come along.
        quick = ("--repl-diskless-sync-delay", "0")
        self.primary = self._stack.enter_context(self._kind.session(port=0, args=quick))
        self.wire = await self._stack.enter_async_context(FaultProxy(self.primary.url))
        follow = ("--replicaof", f"127.0.0.1 {port_of(self.wire.url)}")
        self.replica = self._stack.enter_context(self._kind.session(port=0, args=(*follow, *quick)))
        self.address = await self._stack.enter_async_context(Switch(self.primary.url))
        await self.until_followed()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    @property
    def url(self) -> str:
        return self.address.url

    async def until_followed(self) -> None:
        async def follows() -> bool:
            about = await info(self.replica.url, "replication")
            return about["master_link_status"] == "up"

        await eventually(follows, within_s=20, what="a replica that follows")

    def cut_wire(self) -> None:
        """Let the replica hear nothing more from the primary."""
        self.wire.refuse()
        self.wire.cut()

    async def promote(self) -> None:
        """Make the replica lead; clients still reach the old primary."""
        await tell(self.replica.url, "REPLICAOF", "NO", "ONE")

    async def demote_old(self) -> None:
        """Make the old primary follow the new one; its clients stay connected."""
        await tell(self.primary.url, "REPLICAOF", "127.0.0.1", port_of(self.replica.url))


class Sentinel:
    """One process of `--sentinel` that watches one primary."""

    def __init__(
        self, kind: ServerKind, primary_url: str, *, password: str = "", down_after_ms: int = 500
    ) -> None:
        self.port = free_port()
        self._folder = Path(tempfile.mkdtemp(prefix="chasqui-sentinel-"))
        file = self._folder / "sentinel.conf"
        lines = _sentinel_lines(self.port, self._folder, primary_url, password)
        file.write_text(f"{lines}sentinel down-after-milliseconds {MASTER} {down_after_ms}\n")
        binary = kind.binary or bundled_binary()
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", _TIED, self._folder / "log", binary, file, "--sentinel"],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def close(self) -> None:
        self._shell.stdin.close()
        self._shell.wait(10)
        rmtree(self._folder, ignore_errors=True)


def _sentinel_lines(port: int, folder: Path, primary_url: str, password: str) -> str:
    lines = [
        f"port {port}",
        "bind 127.0.0.1",
        f"dir {folder}",
        f"sentinel monitor {MASTER} 127.0.0.1 {port_of(primary_url)} 1",
        f"sentinel failover-timeout {MASTER} 3000",
        *([f"requirepass {password}"] if password else []),
    ]
    return "\n".join(lines) + "\n"


class Watched:
    """A primary, a replica and a Sentinel that makes it lead when the primary is gone."""

    def __init__(self, kind: ServerKind, *, password: str = "", down_after_ms: int = 500) -> None:
        self._kind = kind
        self._password = password
        self._down_after_ms = down_after_ms
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        quick = ("--repl-diskless-sync-delay", "0")
        self.primary = self._stack.enter_context(self._kind.session(port=0, args=quick))
        follow = ("--replicaof", f"127.0.0.1 {port_of(self.primary.url)}")
        self.replica = self._stack.enter_context(self._kind.session(port=0, args=(*follow, *quick)))
        self.sentinel = self._watch()
        await self.until_settled()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    @property
    def url(self) -> str:
        given = f"?sentinel_password={self._password}" if self._password else ""
        return f"redis+sentinel://127.0.0.1:{self.sentinel.port}/{MASTER}{given}"

    async def until_settled(self) -> None:
        """Wait until the Sentinel knows of a replica that could take over."""
        await eventually(self._is_known, within_s=40, what="a Sentinel that knows a good replica")

    async def ask_sentinel(self, *parts):
        user = f":{self._password}@" if self._password else ""
        return await tell(f"redis://{user}127.0.0.1:{self.sentinel.port}", *parts)

    async def leader_port(self) -> int:
        return int((await self.ask_sentinel("SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER))[1])

    def _watch(self) -> Sentinel:
        options = {"password": self._password, "down_after_ms": self._down_after_ms}
        sentinel = Sentinel(self._kind, self.primary.url, **options)
        self._stack.callback(sentinel.close)
        return sentinel

    async def _is_known(self) -> bool:
        try:
            replicas = await self.ask_sentinel("SENTINEL", "REPLICAS", MASTER)
        except StoreError:
            return False
        known = [dict(zip(row[::2], row[1::2], strict=True)) for row in replicas]
        return any(
            one[b"flags"] == b"slave" and one.get(b"master-link-status") == b"ok" for one in known
        )


class Cluster:
    """Three masters that share the slots; none has a replica."""

    def __init__(self, kind: ServerKind, node_count: int = 3) -> None:
        self._kind = kind
        self._count = node_count
        self._stack = AsyncExitStack()
        self.nodes: list[SessionServer] = []

    async def __aenter__(self) -> Self:
        bus_ports = [free_port() for _ in range(self._count)]
        for bus in bus_ports:
            self.nodes.append(self._stack.enter_context(self._start(bus)))
        await self._share_slots()
        for node, bus in zip(self.nodes[1:], bus_ports[1:], strict=True):
            first = self.nodes[0].url
            await tell(first, "CLUSTER", "MEET", "127.0.0.1", port_of(node.url), bus)
        await eventually(self._is_whole, within_s=30, what="a cluster that serves every slot")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{port_of(one.url)}" for one in self.nodes)

    def owner_at_start(self, queue: str) -> SessionServer:
        """The node that was given the slot of the queue when the cluster was made."""
        return self.nodes[slot_of(queue) * self._count // SLOT_COUNT]

    async def move(
        self, queue: str, source: SessionServer, target: SessionServer, *, pause_s: float = 0.0
    ) -> None:
        """Move the slot of a queue key by key, as resharding does; `pause_s` makes it last."""
        slot = slot_of(queue)
        source_id, target_id = await self._id(source), await self._id(target)
        await tell(target.url, "CLUSTER", "SETSLOT", slot, "IMPORTING", source_id)
        await tell(source.url, "CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)
        await self._migrate(slot, source, target)
        await asyncio.sleep(pause_s)
        await self._migrate(slot, source, target)
        others = [node for node in self.nodes if node not in (source, target)]
        for node in (target, source, *others):
            await tell(node.url, "CLUSTER", "SETSLOT", slot, "NODE", target_id)

    async def move_at_once(self, queue: str, source: SessionServer, target: SessionServer) -> None:
        """Move the slot of a queue as a whole, with the command that the server has for it."""
        slot = slot_of(queue)
        if (await info(source.url, "server")).get("server_name") == "valkey":
            place = ("SLOTSRANGE", slot, slot, "NODE", await self._id(target))
            await tell(source.url, "CLUSTER", "MIGRATESLOTS", *place)
        else:
            await tell(target.url, "CLUSTER", "MIGRATION", "IMPORT", slot, slot)
        await self.until_owned(queue, target)

    async def until_owned(self, queue: str, owner: SessionServer) -> None:
        """Wait until a node says of itself that it holds the queue."""
        slot, port = slot_of(queue), port_of(owner.url)

        async def is_owned() -> bool:
            ranges = await tell(owner.url, "CLUSTER", "SLOTS")
            return any(one[0] <= slot <= one[1] and one[2][1] == port for one in ranges)

        await eventually(is_owned, within_s=40, what="a node that holds the queue")

    async def add_replica(self, master: SessionServer) -> SessionServer:
        """Start one more node that follows a master, and wait until it could take over."""
        bus_port = free_port()
        replica = self._stack.enter_context(self._start(bus_port))
        await tell(master.url, "CLUSTER", "MEET", "127.0.0.1", port_of(replica.url), bus_port)
        master_id = await self._id(master)

        async def has_heard() -> bool:
            with suppress(ServerRefused):
                return await tell(replica.url, "CLUSTER", "REPLICATE", master_id) == b"OK"
            return False

        async def follows() -> bool:
            return (await info(replica.url, "replication")).get("master_link_status") == "up"

        await eventually(has_heard, within_s=20, what="a node that has heard of its master")

        async def are_all_known() -> bool:
            told = [await tell(one.url, "CLUSTER", "INFO") for one in (*self.nodes, replica)]
            count = f"cluster_known_nodes:{len(told)}\r".encode()
            return all(count in one and b"cluster_state:ok" in one for one in told)

        await eventually(follows, within_s=40, what="a replica in the cluster")
        # One that is not known to the others gets no votes.
        await eventually(are_all_known, within_s=40, what="nodes that know each other")
        return replica

    async def _migrate(self, slot: int, source: SessionServer, target: SessionServer) -> None:
        place = ("127.0.0.1", port_of(target.url), "", 0, _MIGRATE_MS, "KEYS")
        while keys := await tell(source.url, "CLUSTER", "GETKEYSINSLOT", slot, 100):
            for key in keys:
                await tell(source.url, "MIGRATE", *place, key)

    async def _id(self, node: SessionServer) -> str:
        return (await tell(node.url, "CLUSTER", "MYID")).decode()

    def _start(self, bus_port: int) -> SessionServer:
        joined = ("--cluster-enabled", "yes", "--cluster-port", str(bus_port))
        quick = ("--cluster-node-timeout", "3000", "--repl-diskless-sync-delay", "0")
        return self._kind.session(port=0, args=(*joined, *quick))

    async def _share_slots(self) -> None:
        # The first slot of a part is the least whose share rounds down to it.
        edges = [-(-SLOT_COUNT * at // self._count) for at in range(self._count + 1)]
        for at, node in enumerate(self.nodes):
            slots = (edges[at], edges[at + 1] - 1)
            await tell(node.url, "CLUSTER", "ADDSLOTSRANGE", *slots)

    async def _is_whole(self) -> bool:
        for node in self.nodes:
            told = (await tell(node.url, "CLUSTER", "INFO")).decode()
            if "cluster_state:ok" not in told or f"cluster_size:{self._count}" not in told:
                return False
        return True
