"""How a pool may be used: by the process that made it, and until it is closed."""

from __future__ import annotations

import os

from chasquimq.errors import SettingsError


def checked_size(size: int) -> int:
    """The size, which must be positive."""
    if size < 1:
        raise SettingsError("size", size, "at least 1")
    return size


def check_usable(owner_pid: int, is_closed: bool) -> None:
    """Refuse what comes too late, or from a fork that inherited no thread and no child."""
    if is_closed:
        raise closed_error()
    if os.getpid() != owner_pid:
        raise RuntimeError("a pool belongs to the process that made it; make a new one after fork")


def closed_error() -> RuntimeError:
    """What callers of a closed pool are told."""
    return RuntimeError("the pool is closed and starts nothing more")
