"""Short conversations with a server and with processes, for the tests of this room."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from chasquimq.server.probe import Address, Reply, ask, unix_address

SRC = Path(__file__).parents[2] / "src"
PATIENCE_S = 10.0


def address_of(url: str) -> Address:
    return unix_address(url) or Address(port=urlsplit(url).port or 0)


def call(url: str, *command: str) -> Reply:
    return ask(address_of(url), [command], timeout_s=5)[0]


def add_entries(url: str, count: int) -> None:
    ask(
        address_of(url), [("XADD", "entries", "*", "n", str(n)) for n in range(count)], timeout_s=30
    )


def start_python(code: str, *args: str, environ: Mapping[str, str]) -> subprocess.Popen[str]:
    """Run code in a process of its own, with the package importable."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *args],
        env={**environ, "PYTHONPATH": str(SRC)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return not is_zombie(pid)


def is_zombie(pid: int) -> bool:
    """True: it ended, and only its parent's question is missing."""
    state = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return state.stdout.strip().startswith("Z")


def comes_true(statement: Callable[[], bool]) -> bool:
    """Ask again until the statement is true; False: patience ran out."""
    deadline = time.monotonic() + PATIENCE_S
    while not statement():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
