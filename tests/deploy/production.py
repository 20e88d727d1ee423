"""The servers of deploy/server, started by its own scripts: three nodes and three Sentinels."""

from __future__ import annotations

import asyncio
import os
import shutil
import ssl
import subprocess
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Self

from chasquimq.errors import StoreError
from chasquimq.server.launch import SessionServer, bundled_binary
from chasquimq.server.probe import free_port
from deploy.kit import DEPLOY, run
from support.servers import knows
from support.tls_front import TlsFront
from support.topologies import tell
from support.waiting import eventually

SERVER = DEPLOY / "server"
HOST = "127.0.0.1"
# Commands of users.acl that servers before Valkey 9.1 and Redis 8.4 do not know.
NEWER = ("client|setinfo", "msetex", "waitaof")
# Programs with TLS, beside one that is on PATH.
TLS_VARIABLE = "CHASQUI_TEST_TLS_SERVER"
# The shell ends with the process that holds its stdin, and takes the server along.
_TIED = '"$@" </dev/null >"$0" 2>&1 & read -r _; kill -9 0'


def tls_binary() -> Path | None:
    """A server program that was built with TLS, where this machine has one."""
    names = [os.environ.get(TLS_VARIABLE), *map(shutil.which, ("valkey-server", "redis-server"))]
    return next((Path(name) for name in names if name and _speaks_tls(name)), None)


def _speaks_tls(program: str) -> bool:
    said = subprocess.run(
        [program, "--port", "0", "--tls-port", str(free_port()), "--tls-cert-file", "none"],
        capture_output=True, text=True, check=False, timeout=20,
    )  # fmt: skip
    return "Failed to configure TLS" in said.stdout


@dataclass
class Process:
    """One server of the example."""

    role: str
    folder: Path
    port: int
    # Where clients and the other servers find it.
    announced: int
    arguments: list[str]
    environ: dict[str, str]
    shell: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        command = [str(SERVER / "start.sh"), self.role, *self.arguments]
        self.shell = subprocess.Popen(
            ["/bin/sh", "-c", _TIED, str(self.folder.with_suffix(".log")), *command],
            env=os.environ | self.environ, stdin=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip

    def kill(self) -> None:
        """End it as a power cut would."""
        if self.shell is not None:
            self.shell.stdin.close()
            self.shell.wait(10)
            self.shell = None

    @property
    def log(self) -> str:
        return self.folder.with_suffix(".log").read_text()


class Production:
    """All of deploy/server on loopback.

    A program without TLS gets a front that speaks it, and announces the port of that front as its own.
    """

    def __init__(self, folder: Path, binary: Path | None, *, has_tls: bool) -> None:
        self.folder = folder
        self.secrets = folder / "secrets"
        self._binary = binary or bundled_binary()
        self._has_tls = has_tls
        self._stack = AsyncExitStack()
        self.nodes: list[Process] = []
        self.sentinels: list[Process] = []
        self.fronts: list[TlsFront] = []

    async def __aenter__(self) -> Self:
        run(["sh", str(SERVER / "make-secrets.sh"), str(self.secrets), HOST])
        await asyncio.to_thread(self._leave_out_what_is_newer)
        for _ in range(3):
            self.nodes.append(await self._start("data"))
        await eventually(self._is_replicated, within_s=60, what="two replicas that follow")
        for _ in range(3):
            self.sentinels.append(await self._start("sentinel"))
        await eventually(self._is_watched, within_s=60, what="Sentinels that know everybody")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def password(self, user: str) -> str:
        return (self.secrets / f"{user}.password").read_text().strip()

    @property
    def trust(self) -> str:
        return f"ssl_ca_certs={self.secrets}/ca.crt"

    def url(self, user: str, password: str | None = None) -> str:
        """The URL of the example for a user, with the places of this test."""
        hosts = ",".join(f"{HOST}:{one.announced}" for one in self.sentinels)
        asked = f"sentinel_username=client&sentinel_password={self.password('client')}"
        who = f"{user}:{password or self.password(user)}"
        return f"rediss+sentinel://{who}@{hosts}/mymaster/0?{asked}&{self.trust}"

    def node_url(self, node: Process, user: str = "admin") -> str:
        return f"rediss://{user}:{self.password(user)}@{HOST}:{node.announced}/0?{self.trust}"

    async def leader(self) -> Process:
        """Who leads, as the first Sentinel has it."""
        ask = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster")
        _, port = await tell(self.node_url(self.sentinels[0]), *ask)
        return next(node for node in self.nodes if node.announced == int(port))

    def _leave_out_what_is_newer(self) -> None:
        """A server refuses a whole file for the name of one command that it does not know."""
        with SessionServer(binary=self._binary) as server:
            newer = [name for name in NEWER if not knows(server.url, name)]
        for file in self.secrets.glob("*.acl"):
            text = file.read_text()
            file.write_text(reduce(lambda left, name: left.replace(f" +{name}", ""), newer, text))

    async def _start(self, role: str) -> Process:
        port = free_port()
        announced = port if self._has_tls else await self._front(port)
        first = self.nodes[0].announced if self.nodes else announced
        # Replicas need not wait for others to come along.
        quick = ["--repl-diskless-sync-delay", "0"] if role == "data" else []
        number = len(self.nodes if role == "data" else self.sentinels) + 1
        environ = {
            "NODE": HOST, "NODE_PORT": str(announced), "PRIMARY": HOST, "PRIMARY_PORT": str(first), "DATA": str(self.folder / f"{role}-{number}"),
            "CONF": str(SERVER), "SECRETS": str(self.secrets), "SERVER": str(self._binary),
            "DOWN_AFTER_MS": "1000",
        }  # fmt: skip
        process = Process(
            role, Path(environ["DATA"]), port, announced, [*self._ports(port), *quick], environ
        )
        process.start()
        self._stack.callback(process.kill)
        return process

    def _ports(self, port: int) -> list[str]:
        if self._has_tls:
            return ["--tls-port", str(port)]
        return ["--tls-port", "0", "--port", str(port), "--tls-replication", "no"]

    async def _front(self, port: int) -> int:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.secrets / "server.crt", self.secrets / "server.key")
        front = await self._stack.enter_async_context(TlsFront(port, context))
        self.fronts.append(front)
        return front.port

    async def _is_replicated(self) -> bool:
        try:
            about = (await tell(self.node_url(self.nodes[0]), "INFO", "replication")).decode()
        except StoreError:
            return False
        return about.count("state=online") == 2

    async def _is_watched(self) -> bool:
        for sentinel in self.sentinels:
            try:
                reply = await tell(self.node_url(sentinel), "SENTINEL", "MASTER", "mymaster")
            except StoreError:
                return False
            about = dict(zip(reply[::2], reply[1::2], strict=True))
            if (about[b"num-slaves"], about[b"num-other-sentinels"]) != (b"2", b"2"):
                return False
            if about[b"flags"] != b"master":
                return False
        return True
