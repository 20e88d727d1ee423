"""Finds the handler again in the process of a task."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from chasquimq.errors import SettingsError
from chasquimq.server.finder import URL_VARIABLES
from chasquimq.worker.worker import Worker

if TYPE_CHECKING:
    from chasquimq.spark.workers.settings import HostSettings


def new_worker(settings: HostSettings, consumer_id: str) -> Worker:
    """The worker of a task; a target that is a Worker keeps its settings about jobs.

    One that names no server dials the one that the run was told.
    """
    found = find_target(settings)
    # Queues of the target that name no server find the one of the run.
    os.environ[URL_VARIABLES[0]] = settings.url
    if not isinstance(found, Worker):
        options: dict[str, Any] = {"redis_url": settings.url, **settings.options}
        return Worker(settings.queue, found, consumer_id=consumer_id, **options)
    if found.is_closed:
        raise SettingsError(
            "spark.python.worker.reuse", "true", "false for a handler that is a Worker",
            hint="a Worker runs once, so each task needs a process of its own",
        )  # fmt: skip
    if found.named_url is None:
        found.use_server(settings.url)
    found.use_process_options(**settings.options)
    found.consumer_id = consumer_id
    return found


def find_target(settings: HostSettings) -> Any:
    """Import what `module:attribute` names."""
    if settings.folder and settings.folder not in sys.path:
        sys.path.insert(0, settings.folder)
    module, _, attribute = settings.target.partition(":")
    return attrgetter(attribute)(import_module(module))
