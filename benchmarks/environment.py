"""Cached environments of peers: a virtual environment or a folder of node modules for each."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

_STAMP = "ready"
_INSTALL_WAIT_S = 300


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
