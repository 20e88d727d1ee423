"""Describes the packages measured beside ours, and keeps an environment of its own for each."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.scenario import CONCURRENCY

if TYPE_CHECKING:
    from benchmarks.scenario import LoopKind, Scenario
    from benchmarks.server import Target

_STAMP = "ready"
_INSTALL_WAIT_S = 300
_PROGRAMS = Path(__file__).parent / "peers"
_NO_SCHEDULER = "moves delayed jobs in a scheduler process of its own, not in the worker"


class PeerMissing(Exception):
    """The peer cannot be measured here; the text says why."""


def cache_dir(environ: Mapping[str, str]) -> Path:
    """Where environments of peers are kept between runs."""
    base = environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "chasqui" / "bench"


def python_of(directory: Path, packages: Sequence[str]) -> Path:
    """The interpreter of an environment with these packages, made when first asked for.

    Raises:
        PeerMissing: it could not be installed.
    """
    python = directory / "bin" / "python"

    def install() -> None:
        run_installer([sys.executable, "-m", "venv", str(directory)])
        run_installer([str(python), "-m", "pip", "install", "--quiet", *packages])

    _ensure(directory, install)
    return python


def node_of(directory: Path, packages: Sequence[str]) -> str:
    """The node that runs what is in the folder, which is filled when first asked for.

    Raises:
        PeerMissing: there is no node or npm, or the packages could not be installed.
    """
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise PeerMissing(f"needs {'node' if node is None else 'npm'}, which is not on PATH")

    def install() -> None:
        directory.mkdir(parents=True)
        (directory / "package.json").write_text('{"private": true}\n', "utf-8")
        quiet = ["--no-audit", "--no-fund", "--silent", "--save-exact"]
        run_installer([npm, "install", "--prefix", str(directory), *quiet, *packages])

    _ensure(directory, install)
    return node


def last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no word of why"


def run_installer(command: Sequence[str]) -> None:
    """Run one step of an installation; raises PeerMissing with its last word."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_INSTALL_WAIT_S,
            stdin=subprocess.DEVNULL, cwd=os.sep,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PeerMissing(f"could not be installed: {error}") from error
    if done.returncode:
        raise PeerMissing(f"could not be installed: {last_line(done.stderr or done.stdout)}")


def _ensure(directory: Path, install: Callable[[], None]) -> None:
    with _alone_in(directory):
        if (directory / _STAMP).exists():
            return
        shutil.rmtree(directory, ignore_errors=True)
        install()
        # Written last: an interrupted installation is made again.
        (directory / _STAMP).touch()


@contextmanager
def _alone_in(directory: Path) -> Generator[None]:
    """Two who want the same environment at once must not both make it."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    with directory.with_name(f"{directory.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


# ── the packages ──────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A package, the program that measures it, and how it differs from the rest.

    Slow peers get fewer jobs, so that a run stays short; rates do not depend on that.
    """

    side: str
    package: str
    version: str
    program: str
    loop: LoopKind
    beside: tuple[str, ...] = ()
    redis_min: tuple[int, int] = (0, 0)
    is_original: bool = False
    add_jobs_max: int = 2_000
    consume_jobs_max: int = 1_000
    concurrency: int = CONCURRENCY
    # How it is run, where that is not obvious.
    note: str = ""
    cannot_delay: str = ""

    def command(self, target: Target, environ: Mapping[str, str]) -> list[str]:
        """The command line to which a plan is added.

        Raises:
            PeerMissing: the server is not one it runs on, or it could not be installed.
        """
        if self.redis_min > (0, 0):
            self._refuse_other_servers(target)
        if self.loop == "node":
            directory = self._directory(environ)
            node = node_of(directory, [f"{self.package}@{self.version}", *self.beside])
            return [node, str(_PROGRAMS / self.program), str(directory)]
        # Isolated, so that neither PYTHONPATH nor the working directory brings our package in.
        return [str(self.python(environ)), "-I", str(_PROGRAMS / "main.py"), self.program]

    def python(self, environ: Mapping[str, str]) -> Path:
        """The interpreter of its environment, which is made when first asked for.

        Raises:
            PeerMissing: it could not be installed.
        """
        packages = [f"{self.package}=={self.version}", *self.beside]
        return python_of(self._directory(environ), packages)

    def refusal(self, scenario: Scenario) -> str | None:
        """Why it has no part in a scenario; None when it has."""
        work = scenario.work
        if work.has_history:
            return "keeps no history of attempts"
        if work.events == "terminal":
            return "cannot choose which events it writes"
        if work.delay_ms and self.cannot_delay:
            return self.cannot_delay
        return None

    def jobs_of(self, scenario: Scenario, wanted: int) -> int:
        most = self.add_jobs_max if scenario.act == "add" else self.consume_jobs_max
        return min(wanted, most)

    def _refuse_other_servers(self, target: Target) -> None:
        if target.kind != "redis" or target.version_numbers < self.redis_min:
            needed = ".".join(map(str, self.redis_min))
            raise PeerMissing(f"needs Redis {needed} or newer, this is {target.title}")

    def _directory(self, environ: Mapping[str, str]) -> Path:
        name = self.package.partition("[")[0]
        return cache_dir(environ) / f"{name}-{self.version}"


# Its wheel brings no uvloop; with one it is faster, and a comparison should show both.
_ORIGINAL = Peer(
    side="original", package="chasquimq", version="1.3.0", program="original", loop="asyncio",
    beside=("uvloop",), redis_min=(8, 6), is_original=True,
    add_jobs_max=100_000, consume_jobs_max=30_000,
)  # fmt: skip
ORIGINALS = (_ORIGINAL, replace(_ORIGINAL, side="original+uvloop", loop="uvloop"))
OTHERS = (
    Peer(
        side="taskiq", package="taskiq", version="0.13.0", program="taskiq_side", loop="uvloop",
        beside=("taskiq-redis==1.2.4", "hiredis", "orjson", "uvloop"), cannot_delay=_NO_SCHEDULER,
    ),
    Peer(
        side="arq", package="arq", version="0.28.0", program="arq_side", loop="uvloop",
        beside=("uvloop",), note="looks for jobs 100 times a second instead of twice",
    ),
    Peer(
        side="streaq", package="streaq", version="7.2.0", program="streaq_side", loop="uvloop",
        beside=("redis", "uvloop"), consume_jobs_max=500,
    ),
    Peer(
        side="saq", package="saq[hiredis,redis]", version="0.26.4", program="saq_side",
        loop="uvloop", beside=("typing-extensions", "uvloop"),
    ),
    Peer(
        side="dramatiq", package="dramatiq[redis]", version="2.2.1", program="dramatiq_side",
        loop="threads", beside=("hiredis",), note="a thread for each job that may run at once",
    ),
    Peer(
        side="rq", package="rq", version="2.12.0", program="rq_side", loop="threads",
        beside=("hiredis",), consume_jobs_max=200, concurrency=1, cannot_delay=_NO_SCHEDULER,
        note="one job at a time: a worker process cannot do more; it runs them without forking",
    ),
    Peer(
        side="celery", package="celery[redis]", version="5.7.0", program="celery_side",
        loop="threads", beside=("hiredis",), add_jobs_max=1_000, consume_jobs_max=500,
        note="one process with a pool of threads; gossip, mingle and heartbeat are off",
    ),
    Peer(
        side="bullmq", package="bullmq", version="6.7.0", program="bullmq_side.mjs", loop="node",
        beside=("ioredis@5.11.1",), add_jobs_max=5_000, consume_jobs_max=5_000,
    ),
)  # fmt: skip
PEERS = {peer.side: peer for peer in (*ORIGINALS, *OTHERS)}
