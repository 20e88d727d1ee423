"""ChasquiMQ in Python: a job queue and message broker on Redis Streams and MessagePack."""

from __future__ import annotations

import importlib

from chasquimq.model.version import __version__ as __version__

# `typing` and `logging` take longer to import than the package itself, and who only looks up a
# name may do without them.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from chasquimq.compat import Consumer, Producer, Scheduler
    from chasquimq.errors import (
        AbilityMissing,
        BatchAnswer,
        ChasquiError,
        ConnectionLost,
        CredentialsRefused,
        DecodeError,
        DurabilityNotMet,
        EditRefused,
        EncodeError,
        EntriesLost,
        GroupConflict,
        IdConflict,
        JobError,
        JobFailed,
        JobTimeout,
        KindRefused,
        LimitExceeded,
        NotSupportedError,
        PayloadTooLarge,
        PreconditionFailed,
        ProcessLate,
        QueueFull,
        ResultExpired,
        RetryLater,
        RowsRefused,
        ScheduleRefused,
        ScriptFailed,
        ServerOutOfMemory,
        ServerRefused,
        ServerUnreachable,
        SettingsError,
        SparkFailed,
        StoreError,
        UnrecoverableError,
        WireError,
        WriteFailed,
    )
    from chasquimq.job import Job, current_job
    from chasquimq.model.json_value import json_value
    from chasquimq.model.snapshot import DelayedJob, JobState, Snapshot
    from chasquimq.queue.dlq import DeadLetter
    from chasquimq.queue.inspector import Inspector
    from chasquimq.queue.queue import Queue
    from chasquimq.queue_events import QueueEvent, QueueEvents
    from chasquimq.repeat import (
        BackoffSpec,
        MissedFiresPolicy,
        QuarantinedRepeatable,
        RepeatableMeta,
        RepeatPattern,
    )
    from chasquimq.settings import (
        AbilitySettings,
        AckSettings,
        ConnectionSettings,
        EventSettings,
        HistorySettings,
        LeaseSettings,
        PoolSettings,
        ProducerSettings,
        ReadSettings,
        ResultSettings,
        RetrySettings,
        UpkeepSettings,
        WorkerSettings,
    )
    from chasquimq.store.dlq import Imported, Replayed
    from chasquimq.store.drain import Cancelled, Drained
    from chasquimq.store.inspect.queue import Counts
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
        QueueLabeled,
        ReaderBatch,
        RetryScheduled,
    )
    from chasquimq.telemetry.tracing import Tracing
    from chasquimq.worker.batching import Batch as Batch
    from chasquimq.worker.handlers import Handler, HandlerFunction
    from chasquimq.worker.hooks import Hooks
    from chasquimq.worker.session import Health
    from chasquimq.worker.upkeep import Upkeep
    from chasquimq.worker.worker import Worker

_HOMES = {
    "AbilityMissing": "errors",
    "AbilitySettings": "settings",
    "AckSettings": "settings",
    "BackoffSpec": "repeat",
    "Batch": "worker.batching",
    "BatchAnswer": "errors",
    "Cancelled": "store.drain",
    "ChasquiError": "errors",
    "ConnectionLost": "errors",
    "ConnectionSettings": "settings",
    "Consumer": "compat",
    "Counts": "store.inspect.queue",
    "CredentialsRefused": "errors",
    "current_job": "job",
    "DeadLetter": "queue.dlq",
    "DecodeError": "errors",
    "DelayedJob": "model.snapshot",
    "DlqRouted": "telemetry.sink",
    "Drained": "store.drain",
    "DurabilityNotMet": "errors",
    "EditRefused": "errors",
    "EncodeError": "errors",
    "EntriesLost": "errors",
    "EventSettings": "settings",
    "GroupConflict": "errors",
    "Handler": "worker.handlers",
    "HandlerFunction": "worker.handlers",
    "Health": "worker.session",
    "HistorySettings": "settings",
    "Hooks": "worker.hooks",
    "IdConflict": "errors",
    "Imported": "store.dlq",
    "InMemorySink": "telemetry.memory",
    "Inspector": "queue.inspector",
    "Job": "job",
    "JobError": "errors",
    "JobFailed": "errors",
    "JobOutcome": "telemetry.sink",
    "JobState": "model.snapshot",
    "JobTimeout": "errors",
    "json_value": "model.json_value",
    "KindRefused": "errors",
    "LeaseSettings": "settings",
    "LimitExceeded": "errors",
    "LockOutcome": "telemetry.sink",
    "MetricsSink": "telemetry.sink",
    "MissedFiresPolicy": "repeat",
    "NoopSink": "telemetry.sink",
    "NotSupportedError": "errors",
    "OtelSink": "telemetry.otel",
    "PayloadTooLarge": "errors",
    "PoolSettings": "settings",
    "PreconditionFailed": "errors",
    "ProcessLate": "errors",
    "Producer": "compat",
    "ProducerSettings": "settings",
    "PrometheusSink": "telemetry.prometheus",
    "PromoterTick": "telemetry.sink",
    "QuarantinedRepeatable": "repeat",
    "Queue": "queue.queue",
    "QueueEvent": "queue_events",
    "QueueEvents": "queue_events",
    "QueueFull": "errors",
    "QueueLabeled": "telemetry.sink",
    "ReaderBatch": "telemetry.sink",
    "ReadSettings": "settings",
    "RepeatableMeta": "repeat",
    "RepeatPattern": "repeat",
    "Replayed": "store.dlq",
    "ResultExpired": "errors",
    "ResultSettings": "settings",
    "RetryLater": "errors",
    "RetryScheduled": "telemetry.sink",
    "RetrySettings": "settings",
    "RowsRefused": "errors",
    "Scheduler": "compat",
    "ScheduleRefused": "errors",
    "ScriptFailed": "errors",
    "ServerOutOfMemory": "errors",
    "ServerRefused": "errors",
    "ServerUnreachable": "errors",
    "SettingsError": "errors",
    "Snapshot": "model.snapshot",
    "SparkFailed": "errors",
    "StoreError": "errors",
    "Tracing": "telemetry.tracing",
    "UnrecoverableError": "errors",
    "Upkeep": "worker.upkeep",
    "UpkeepSettings": "settings",
    "WireError": "errors",
    "Worker": "worker.worker",
    "WorkerSettings": "settings",
    "WriteFailed": "errors",
}
# Programs written for ChasquiMQ (Rust) reach these through the package, without an import of their own.
_MODULES = {"_native", "blocking", "errors", "job", "queue", "queue_events", "repeat", "worker"}
# OtelSink and PrometheusSink are left out: they need extras, and a star takes all it finds here.
__all__ = [  # noqa: RUF022 - sorted without regard to case
    "AbilityMissing",
    "AbilitySettings",
    "AckSettings",
    "BackoffSpec",
    "Batch",
    "BatchAnswer",
    "Cancelled",
    "ChasquiError",
    "ConnectionLost",
    "ConnectionSettings",
    "Consumer",
    "Counts",
    "CredentialsRefused",
    "current_job",
    "DeadLetter",
    "DecodeError",
    "DelayedJob",
    "DlqRouted",
    "Drained",
    "DurabilityNotMet",
    "EditRefused",
    "EncodeError",
    "EntriesLost",
    "EventSettings",
    "GroupConflict",
    "Handler",
    "HandlerFunction",
    "Health",
    "HistorySettings",
    "Hooks",
    "IdConflict",
    "Imported",
    "InMemorySink",
    "Inspector",
    "Job",
    "JobError",
    "JobFailed",
    "JobOutcome",
    "JobState",
    "JobTimeout",
    "json_value",
    "KindRefused",
    "LeaseSettings",
    "LimitExceeded",
    "LockOutcome",
    "MetricsSink",
    "MissedFiresPolicy",
    "NoopSink",
    "NotSupportedError",
    "PayloadTooLarge",
    "PoolSettings",
    "PreconditionFailed",
    "ProcessLate",
    "Producer",
    "ProducerSettings",
    "PromoterTick",
    "QuarantinedRepeatable",
    "Queue",
    "QueueEvent",
    "QueueEvents",
    "QueueFull",
    "QueueLabeled",
    "ReaderBatch",
    "ReadSettings",
    "RepeatableMeta",
    "RepeatPattern",
    "Replayed",
    "ResultExpired",
    "ResultSettings",
    "RetryLater",
    "RetryScheduled",
    "RetrySettings",
    "RowsRefused",
    "Scheduler",
    "ScheduleRefused",
    "ScriptFailed",
    "ServerOutOfMemory",
    "ServerRefused",
    "ServerUnreachable",
    "SettingsError",
    "Snapshot",
    "SparkFailed",
    "StoreError",
    "Tracing",
    "UnrecoverableError",
    "Upkeep",
    "UpkeepSettings",
    "version",
    "WireError",
    "Worker",
    "WorkerSettings",
    "WriteFailed",
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
