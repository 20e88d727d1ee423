"""What a Spark job costs on this machine: CPU time by kind of process, and the most memory."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import NamedTuple, Self

TICKS = os.sysconf("SC_CLK_TCK")
SERVERS = ("valkey", "redis")


class Cpu(NamedTuple):
    """CPU seconds of the JVM, of all Python processes under this one, and of the server."""

    java_s: float = 0.0
    python_s: float = 0.0
    server_s: float = 0.0

    def us_per_row(self, before: Cpu, rows: int) -> dict[str, float]:
        """What each kind has spent on a row since then."""
        kinds = ("java", "python", "server")
        spent = [(now - then) / rows * 1e6 for now, then in zip(self, before, strict=True)]
        return {f"{kind}_us_per_row": us for kind, us in zip(kinds, spent, strict=True)}


def cpu(*, with_this: bool) -> Cpu:
    """What was spent so far; a process that only watches is better left out."""
    java = python = server = 0.0
    for pid in family():
        is_this = pid == os.getpid()
        if is_this and not with_this:
            continue
        own_s, gone_children_s = spent_s(pid)
        name = name_of(pid)
        if name.startswith("java"):
            java += own_s
        elif name.startswith(SERVERS):
            server += own_s
        else:
            python += own_s + (0.0 if is_this else gone_children_s)
    return Cpu(java, python, server)


class Peak:
    """The most memory that Spark had, shared pages once; the server's is not of it."""

    def __init__(self, every_s: float) -> None:
        self.bytes = 0
        self.python_bytes = 0
        self._every_s = every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(self._every_s):
            used = [(pid, name_of(pid), pss_bytes(pid)) for pid in family()]
            mine = [one for one in used if not one[1].startswith(SERVERS)]
            # This process only watches.
            python = [
                one for one in mine if one[0] != os.getpid() and not one[1].startswith("java")
            ]
            self.bytes = max(self.bytes, sum(size for _, _, size in mine))
            self.python_bytes = max(self.python_bytes, sum(size for _, _, size in python))


def family() -> list[int]:
    """This process and all that came of it."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found = [os.getpid()]
    for pid in found:
        found += children.get(pid, [])
    return found


def spent_s(pid: int) -> tuple[float, float]:
    """CPU seconds of a process, and of those of its children that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0, 0.0
    user, system, gone_user, gone_system = map(int, fields[11:15])
    return (user + system) / TICKS, (gone_user + gone_system) / TICKS


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def pss_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1_024 for line in lines if line.startswith("Pss:")), 0)
