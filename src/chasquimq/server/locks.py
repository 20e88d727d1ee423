"""File locks that end with their holder, however it ends."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from chasquimq.server.own_files import open_own

POLL_S = 0.005


@contextmanager
def locked(path: Path, wait_s: float) -> Generator[int]:
    """Hold the lock and yield its descriptor.

    A process that inherits the descriptor goes on holding the lock after this block:
    closing our copy releases nothing while another copy is open.

    Raises:
        TimeoutError: somebody else held it for all of `wait_s`.
        SettingsError: the file is a link, or another user's.
    """
    descriptor = open_own(path, os.O_RDWR | os.O_CREAT)
    try:
        _wait_for(descriptor, path, time.monotonic() + wait_s)
        yield descriptor
    finally:
        os.close(descriptor)


def becomes_free(path: Path, wait_s: float = 0) -> bool:
    """True: nobody holds the lock now, or before `wait_s` was over."""
    try:
        with locked(path, wait_s):
            return True
    except TimeoutError:
        return False


def _wait_for(descriptor: int, path: Path, deadline: float) -> None:
    while not _try_lock(descriptor):
        if time.monotonic() >= deadline:
            raise TimeoutError(f"{path} is locked by another process")
        time.sleep(POLL_S)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
