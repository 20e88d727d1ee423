"""ChasquiMQ in Python: a job queue and message broker on Redis Streams and MessagePack."""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chasquimq.consumer import Consumer
    from chasquimq.errors import ChasquiError, NotSupportedError, RetryLater, UnrecoverableError
    from chasquimq.job import Job, current_job
    from chasquimq.model.job_state import JobState
    from chasquimq.producer import Producer
    from chasquimq.queue import Queue
    from chasquimq.queue_events import QueueEvent, QueueEvents
    from chasquimq.repeat import BackoffSpec, MissedFiresPolicy, RepeatableMeta, RepeatPattern
    from chasquimq.scheduler import Scheduler
    from chasquimq.upkeep import Upkeep
    from chasquimq.worker import Handler, Worker

_HOMES = {
    "BackoffSpec": "repeat",
    "ChasquiError": "errors",
    "Consumer": "consumer",
    "Handler": "worker",
    "Job": "job",
    "JobState": "model.job_state",
    "MissedFiresPolicy": "repeat",
    "NotSupportedError": "errors",
    "Producer": "producer",
    "Queue": "queue",
    "QueueEvent": "queue_events",
    "QueueEvents": "queue_events",
    "RepeatPattern": "repeat",
    "RepeatableMeta": "repeat",
    "Scheduler": "scheduler",
    "RetryLater": "errors",
    "UnrecoverableError": "errors",
    "Upkeep": "upkeep",
    "Worker": "worker",
    "current_job": "job",
}
# Callers of the original reach these through the package, without an import of their own.
_MODULES = {"_native", "errors", "job", "queue", "queue_events", "repeat", "worker"}
__all__ = [  # noqa: RUF022 - sorted without regard to case
    "BackoffSpec",
    "ChasquiError",
    "Consumer",
    "current_job",
    "Handler",
    "Job",
    "JobState",
    "MissedFiresPolicy",
    "NotSupportedError",
    "Producer",
    "Queue",
    "QueueEvent",
    "QueueEvents",
    "RepeatableMeta",
    "RepeatPattern",
    "Scheduler",
    "RetryLater",
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
    if name in _MODULES:
        return importlib.import_module(f"chasquimq.{name}")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"chasquimq.{home}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
