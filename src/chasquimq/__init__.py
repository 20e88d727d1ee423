"""ChasquiMQ in Python: a job queue and message broker on Redis Streams and MessagePack."""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chasquimq.errors import ChasquiError, NotSupportedError, UnrecoverableError
    from chasquimq.job import Job, current_job
    from chasquimq.model.job_state import JobState
    from chasquimq.queue import Queue
    from chasquimq.repeat import BackoffSpec, MissedFiresPolicy, RepeatableMeta, RepeatPattern
    from chasquimq.upkeep import Upkeep
    from chasquimq.worker import Handler, Worker

_HOMES = {
    "BackoffSpec": "repeat",
    "ChasquiError": "errors",
    "Handler": "worker",
    "Job": "job",
    "JobState": "model.job_state",
    "MissedFiresPolicy": "repeat",
    "NotSupportedError": "errors",
    "Queue": "queue",
    "RepeatPattern": "repeat",
    "RepeatableMeta": "repeat",
    "UnrecoverableError": "errors",
    "Upkeep": "upkeep",
    "Worker": "worker",
    "current_job": "job",
}
__all__ = [  # noqa: RUF022 - sorted without regard to case
    "BackoffSpec",
    "ChasquiError",
    "current_job",
    "Handler",
    "Job",
    "JobState",
    "MissedFiresPolicy",
    "NotSupportedError",
    "Queue",
    "RepeatableMeta",
    "RepeatPattern",
    "UnrecoverableError",
    "Upkeep",
    "version",
    "Worker",
]
__version__ = "0.1.0"

logging.getLogger(__name__).addHandler(logging.NullHandler())


def version() -> str:
    """The version of this package."""
    return __version__


def __getattr__(name: str) -> Any:
    # Names load their module when first used, so that importing the package stays cheap.
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"chasquimq.{home}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
