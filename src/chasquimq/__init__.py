"""ChasquiMQ in Python: a job queue and message broker on Redis Streams and MessagePack."""

from __future__ import annotations

import importlib

from chasquimq.model.version import __version__ as __version__

# `typing` and `logging` take longer to import than the package itself, and who only looks up a
# name may do without them.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from chasquimq.batching import Batch as Batch
    from chasquimq.consumer import Consumer
    from chasquimq.errors import ChasquiError, NotSupportedError, RetryLater, UnrecoverableError
    from chasquimq.job import Job, current_job
    from chasquimq.model.job_state import JobState
    from chasquimq.producer import Producer
    from chasquimq.queue import Queue
    from chasquimq.queue_events import QueueEvent, QueueEvents
    from chasquimq.repeat import BackoffSpec, MissedFiresPolicy, RepeatableMeta, RepeatPattern
    from chasquimq.scheduler import Scheduler
    from chasquimq.telemetry.labelled import QueueLabeled
    from chasquimq.telemetry.memory import InMemorySink
    from chasquimq.telemetry.otel import OtelSink as OtelSink
    from chasquimq.telemetry.prometheus import PrometheusSink as PrometheusSink
    from chasquimq.telemetry.sink import (
        DlqRouted,
        JobOutcome,
        LockOutcome,
        MetricsSink,
        NoopSink,
        PromoterTick,
        ReaderBatch,
        RetryScheduled,
    )
    from chasquimq.telemetry.tracing import Tracing
    from chasquimq.upkeep import Upkeep
    from chasquimq.worker import Handler, HandlerFunction, Worker

_HOMES = {
    "BackoffSpec": "repeat",
    "Batch": "batching",
    "ChasquiError": "errors",
    "Consumer": "consumer",
    "DlqRouted": "telemetry.sink",
    "Handler": "worker",
    "HandlerFunction": "worker",
    "InMemorySink": "telemetry.memory",
    "Job": "job",
    "JobOutcome": "telemetry.sink",
    "JobState": "model.job_state",
    "LockOutcome": "telemetry.sink",
    "MetricsSink": "telemetry.sink",
    "MissedFiresPolicy": "repeat",
    "NoopSink": "telemetry.sink",
    "NotSupportedError": "errors",
    "OtelSink": "telemetry.otel",
    "Producer": "producer",
    "PrometheusSink": "telemetry.prometheus",
    "PromoterTick": "telemetry.sink",
    "Queue": "queue",
    "QueueEvent": "queue_events",
    "QueueEvents": "queue_events",
    "QueueLabeled": "telemetry.labelled",
    "ReaderBatch": "telemetry.sink",
    "RepeatPattern": "repeat",
    "RepeatableMeta": "repeat",
    "RetryLater": "errors",
    "RetryScheduled": "telemetry.sink",
    "Scheduler": "scheduler",
    "Tracing": "telemetry.tracing",
    "UnrecoverableError": "errors",
    "Upkeep": "upkeep",
    "Worker": "worker",
    "current_job": "job",
}
# Callers of the original reach these through the package, without an import of their own.
_MODULES = {"_native", "blocking", "errors", "job", "queue", "queue_events", "repeat", "worker"}
# OtelSink and PrometheusSink are left out: they need extras, and a star takes all it finds here.
__all__ = [  # noqa: RUF022 - sorted without regard to case
    "BackoffSpec",
    "Batch",
    "ChasquiError",
    "Consumer",
    "current_job",
    "DlqRouted",
    "Handler",
    "HandlerFunction",
    "InMemorySink",
    "Job",
    "JobOutcome",
    "JobState",
    "LockOutcome",
    "MetricsSink",
    "MissedFiresPolicy",
    "NoopSink",
    "NotSupportedError",
    "Producer",
    "PromoterTick",
    "Queue",
    "QueueEvent",
    "QueueEvents",
    "QueueLabeled",
    "ReaderBatch",
    "RepeatableMeta",
    "RepeatPattern",
    "RetryLater",
    "RetryScheduled",
    "Scheduler",
    "Tracing",
    "UnrecoverableError",
    "Upkeep",
    "version",
    "Worker",
]


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
