"""Other packages to measure beside ours, each in a cached environment of its own."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chasquimq.bench.scenario import LoopKind
    from chasquimq.bench.target import Target

_PROGRAMS = Path(__file__).parent / "peers"
_STAMP = "ready"
_INSTALL_WAIT_S = 300


class PeerMissing(Exception):
    """The peer cannot be measured here; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A package, the program that measures it, and the oldest Redis it needs."""

    side: str
    package: str
    version: str
    program: str
    loop: LoopKind
    redis_min: tuple[int, int]

    def command(self, target: Target, environ: Mapping[str, str]) -> list[str]:
        """The command line to which a plan is added.

        Raises:
            PeerMissing: the server is not one it runs on, or it could not be installed.
        """
        if target.kind != "redis" or target.version_numbers < self.redis_min:
            needed = ".".join(map(str, self.redis_min))
            raise PeerMissing(f"needs Redis {needed} or newer, this is {target.title}")
        # Isolated, so that neither PYTHONPATH nor the working directory brings our package in.
        return [str(self.python(environ)), "-I", str(_PROGRAMS / self.program)]

    def python(self, environ: Mapping[str, str]) -> Path:
        """The interpreter of its environment, which is made when first asked for.

        Raises:
            PeerMissing: it could not be installed.
        """
        directory = cache_dir(environ) / f"{self.package}-{self.version}"
        with _alone_in(directory):
            if not (directory / _STAMP).exists():
                self._install(directory)
        return directory / "bin" / "python"

    def _install(self, directory: Path) -> None:
        python = directory / "bin" / "python"
        shutil.rmtree(directory, ignore_errors=True)
        _run([sys.executable, "-m", "venv", str(directory)])
        wanted = [f"{self.package}=={self.version}", "uvloop"]
        _run([str(python), "-m", "pip", "install", "--quiet", *wanted])
        # Written last: an interrupted installation is made again.
        (directory / _STAMP).touch()


def _original(side: str, loop: LoopKind) -> Peer:
    return Peer(
        side=side, package="chasquimq", version="1.3.0", program="original.py",
        loop=loop, redis_min=(8, 6),
    )  # fmt: skip


# Its wheel brings no uvloop; with one it is faster, and whoever compares should see both.
ORIGINALS = (_original("original", "asyncio"), _original("original+uvloop", "uvloop"))


def cache_dir(environ: Mapping[str, str]) -> Path:
    """Where environments of peers are kept between runs."""
    base = environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "chasqui" / "bench"


def last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no word of why"


@contextmanager
def _alone_in(directory: Path) -> Generator[None]:
    """Two who want the same environment at once must not both make it."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    with directory.with_name(f"{directory.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_INSTALL_WAIT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PeerMissing(f"could not be installed: {error}") from error
    if done.returncode:
        raise PeerMissing(f"could not be installed: {last_line(done.stderr or done.stdout)}")
