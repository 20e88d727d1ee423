"""Starts a server process from a plan and waits until it answers."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from chasquimq.errors import ServerUnreachable
from chasquimq.server.command_line import LaunchPlan
from chasquimq.server.locks import becomes_free, locked
from chasquimq.server.own_files import open_own, read_own
from chasquimq.server.probe import Identity, identify, is_serving

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
    """Start a server that dies, and whose `scratch` goes, once the answer's stdin is closed."""
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
        ServerUnreachable: it ended, or stayed silent; the message ends with its last words.
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
    words = read_own(plan.log_path).split("\n")
    last = next((line.strip() for line in reversed(words) if line.strip()), "nothing")
    return ServerUnreachable(
        f"the server {plan.binary} should have started in {plan.data_dir} but {what}; "
        f"its last words: {last}"
    )
