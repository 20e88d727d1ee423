"""A first tiny job: can executors import the handler, make the worker and reach the server?"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from chasquimq.errors import (
    ChasquiError,
    NotSupportedError,
    SettingsError,
    SparkFailed,
    StoreError,
)
from chasquimq.spark.failures import first_line
from chasquimq.spark.workers.board import Board
from chasquimq.spark.workers.target import new_worker

if TYPE_CHECKING:
    from chasquimq.spark.workers.settings import HostSettings

_IMPORT_FAILED = re.compile(r"^(?:ModuleNotFoundError|ImportError): (?P<what>.+)$", re.MULTILINE)


def look_around(
    settings: HostSettings, _partition: int, _rows: Iterable[int]
) -> Iterator[str | None]:
    """What keeps a worker from running here, in a sentence."""
    yield _handler_trouble(settings) or _server_trouble(settings)


def refuse_troubles(troubles: Iterable[str | None]) -> None:
    """Raise the first sentence there is."""
    for trouble in filter(None, troubles):
        raise NotSupportedError(trouble)


def not_hosted(error: Exception) -> ChasquiError:
    """Why not even the question could be asked."""
    found = _IMPORT_FAILED.findall(str(error))
    if found:
        return NotSupportedError(
            f"executors must be able to import chasquimq and what it needs: {found[-1].strip()}; "
            "install chasquimq-py for their Python, or name one that has it by PYSPARK_PYTHON"
        )
    return SparkFailed(
        f"Spark must be able to run a first task, but said: {first_line(error)}; look at its "
        "master and the logs of its executors"
    )


def _handler_trouble(settings: HostSettings) -> str | None:
    try:
        new_worker(settings, "probe")
    except SettingsError as refused:
        return str(refused)
    except (Exception, SystemExit) as error:  # noqa: BLE001  a user's module may raise anything
        return (
            f"executors must be able to import {settings.target}, but {socket.gethostname()} "
            f"cannot: {type(error).__name__}: {error}; give its files with --py-files"
        )
    return None


def _server_trouble(settings: HostSettings) -> str | None:
    board = Board(settings.queue, settings.connection, settings.run)
    try:
        board.ping()
    except StoreError as error:
        return f"executors must reach the server, but {socket.gethostname()} cannot: {error}"
    finally:
        board.close()
    return None
