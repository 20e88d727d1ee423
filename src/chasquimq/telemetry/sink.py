"""Defines what a metrics sink is, and wraps sinks: with labels, as a group, guarded from errors."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

from chasquimq.errors import SettingsError
from chasquimq.model.log import LogThrottle, get_logger
from chasquimq.telemetry.records import (
    U32_MAX,
    U64_MAX,
    CompletedRuns,
    DlqRouted,
    GroupRecreated,
    JobOutcome,
    LeaseLost,
    LockOutcome,
    LockRole,
    OutcomeKind,
    PromoterTick,
    ReaderBatch,
    Record,
    RetryScheduled,
    RowsDropped,
    StaleOutcomes,
    WorkerHealth,
    saturate,
)

__all__ = [
    "BATCHES",
    "RECORD_METHODS",
    "U32_MAX",
    "U64_MAX",
    "CompletedRuns",
    "DlqRouted",
    "GroupRecreated",
    "JobOutcome",
    "LeaseLost",
    "LockOutcome",
    "LockRole",
    "MetricsSink",
    "NoopSink",
    "OutcomeKind",
    "PromoterTick",
    "ReaderBatch",
    "Record",
    "RetryScheduled",
    "RowsDropped",
    "StaleOutcomes",
    "WorkerHealth",
    "is_inherited",
    "is_noop",
    "listens",
    "saturate",
]


# ── the interface ─────────────────────────────────────────────────────────────────────────────────


class MetricsSink:
    """Override the methods of the records you want; the others, and those of later versions, do nothing.

    Methods are called on the event loop, between jobs: count and return. An error raised here harms
    no job. Records of jobs come in batches; a sink that overrides only the method of single records
    gets them one by one. A batch is valid during the call, and may make its records on demand: keep
    `list(batch)`, because the batch itself holds the jobs and their payloads.
    """

    def promoter_tick(self, tick: PromoterTick) -> None: ...

    def lock_outcome(self, outcome: LockOutcome) -> None: ...

    def reader_batch(self, batch: ReaderBatch) -> None: ...

    def job_outcome(self, outcome: JobOutcome) -> None: ...

    def job_outcomes(self, batch: Sequence[JobOutcome]) -> None:
        for outcome in batch:
            self.job_outcome(outcome)

    def retry_scheduled(self, retry: RetryScheduled) -> None: ...

    def retries_scheduled(self, batch: Sequence[RetryScheduled]) -> None:
        for retry in batch:
            self.retry_scheduled(retry)

    def dlq_routed(self, burial: DlqRouted) -> None: ...

    def dlqs_routed(self, batch: Sequence[DlqRouted]) -> None:
        for burial in batch:
            self.dlq_routed(burial)

    def lease_lost(self, loss: LeaseLost) -> None: ...

    def stale_outcomes(self, outcomes: StaleOutcomes) -> None: ...

    def rows_dropped(self, rows: RowsDropped) -> None: ...

    def group_recreated(self, group: GroupRecreated) -> None: ...

    def worker_health(self, health: WorkerHealth) -> None: ...


class NoopSink(MetricsSink):
    """Listens to nothing; a worker that has it makes no records at all."""


# Methods that take a batch, and the ones that take its records.
BATCHES: Mapping[str, str] = MappingProxyType(
    {
        "job_outcomes": "job_outcome",
        "retries_scheduled": "retry_scheduled",
        "dlqs_routed": "dlq_routed",
    }
)
RECORD_METHODS = tuple(name for name in vars(MetricsSink) if not name.startswith("_"))


def is_noop(sink: MetricsSink | None) -> bool:
    """Whether no method of the sink does anything, so that no record need be made."""
    return sink is None or not any(listens(sink, method_name) for method_name in RECORD_METHODS)


def listens(sink: MetricsSink, method_name: str) -> bool:
    """Whether this method of the sink, or of what it wraps, does anything."""
    if not is_inherited(getattr(sink, method_name), method_name):
        return True
    return method_name in BATCHES and listens(sink, BATCHES[method_name])


def is_inherited(method: Any, method_name: str) -> bool:
    """Whether a sink left this method as it came."""
    return getattr(method, "__func__", None) is getattr(MetricsSink, method_name)


# ── labels ────────────────────────────────────────────────────────────────────────────────────────

_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
# What our own metrics say about a record; a label of the same name would hide it.
RESERVED_LABELS = frozenset({"name", "kind", "reason", "le", "quantile"})


@runtime_checkable
class TakesLabels(Protocol):
    """A sink that keeps numbers apart by label set."""

    def labelled(self, labels: Mapping[str, str]) -> MetricsSink:
        """A sink for these labels; it shares everything else with this one."""
        ...


class Labeled(MetricsSink):
    """Adds labels to every record; a sink without labels gets the records as they are.

    Wrappers may be stacked in any order: their labels add up, and each record is counted once,
    under all of them. For a label that is given twice the outer wrapper's value holds.
    """

    def __init__(self, sink: MetricsSink, /, **labels: str) -> None:
        for name, value in labels.items():
            _check_label(name, value)
        if isinstance(sink, Labeled):
            sink, labels = sink.sink, {**sink.labels, **labels}
        self.sink: MetricsSink = sink
        self.labels: dict[str, str] = labels
        target = sink.labelled(labels) if isinstance(sink, TakesLabels) else sink
        for method_name in RECORD_METHODS:
            # On the instance: a wrapper costs nothing per record, however many are stacked.
            setattr(self, method_name, getattr(target, method_name))


class QueueLabeled(Labeled):
    """Adds the label `queue`, for one sink that serves the workers of several queues."""

    def __init__(self, sink: MetricsSink, queue: str) -> None:
        super().__init__(sink, queue=queue)


def _check_label(name: str, value: object) -> None:
    if not _LABEL_NAME.fullmatch(name) or name.startswith("__"):
        raise SettingsError("a label's name", name, "ASCII letters, digits and underscores")
    if name in RESERVED_LABELS:
        raise SettingsError("a label's name", name, "none that the metrics use themselves")
    if not isinstance(value, str):
        raise SettingsError(f"the label {name}", value, "text")


# ── guard and composition ─────────────────────────────────────────────────────────────────────────

_WINDOW_NS = 1_000_000_000
_SPENT_NS_MAX = 200_000_000


class TimeBudget:
    """A budget of a fifth of each second; one long call and many short ones count the same."""

    def __init__(self) -> None:
        self._since_ns = 0
        self._spent_ns = 0

    def is_too_much(self, began_ns: int, ended_ns: int) -> bool:
        """Add a stretch of time; True: too much was spent, and counting starts again."""
        if began_ns - self._since_ns > _WINDOW_NS:
            self._since_ns, self._spent_ns = began_ns, 0
        self._spent_ns += ended_ns - began_ns
        if self._spent_ns <= _SPENT_NS_MAX:
            return False
        self._since_ns, self._spent_ns = ended_ns, 0
        return True


logger = get_logger(__name__)
Method = Callable[[Any], None]


def both_sinks(sink: MetricsSink | None, other: MetricsSink) -> MetricsSink | None:
    """One sink for `sink`, which is guarded already, and another one; None if neither listens."""
    safe = safe_sink(other)
    if sink is None or safe is None:
        return safe or sink
    return CompositeSink([sink, safe])


def safe_sink(sink: MetricsSink | None) -> SafeSink | None:
    """The sink behind a guard; None for one that overrides nothing, which then costs nothing."""
    guarded = None if sink is None else SafeSink(sink)
    return None if is_noop(sink) else guarded


class CompositeSink(MetricsSink):
    """Passes every record to each of several sinks that listens to it, one after the other.

    Make each of them safe: what one raises keeps the record from those behind it.
    """

    def __init__(self, sinks: Sequence[MetricsSink]) -> None:
        for method_name in RECORD_METHODS:
            methods = [getattr(one, method_name) for one in sinks if listens(one, method_name)]
            if methods:
                # On the instance, so that a method without listeners stays a no-op.
                setattr(self, method_name, methods[0] if len(methods) == 1 else _to_all(methods))


class SafeSink(MetricsSink):
    """Passes every record on; a sink that raises, or is slow, is logged once, then ever less often.

    A sink that takes records singly loses only those it raised for.
    """

    def __init__(self, sink: MetricsSink, *, throttle: LogThrottle | None = None) -> None:
        # Arguments of users may be of any type.
        if not isinstance(sink, MetricsSink):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SettingsError("metrics", sink, "a MetricsSink", hint="subclass it")
        self._sink = sink
        self._error_throttle = throttle or LogThrottle()
        self._slow_throttle = LogThrottle()
        self._budget = TimeBudget()
        for method_name in RECORD_METHODS:
            # On the instance, so that a no-op stays one.
            setattr(self, method_name, self._guarded(method_name))

    def _guarded(self, method_name: str) -> Method:
        method: Method = getattr(self._sink, method_name)
        if not listens(self._sink, method_name):
            return method
        if method_name in BATCHES and is_inherited(method, method_name):
            single: Method = getattr(self._sink, BATCHES[method_name])
            return self._timed(_for_each(self._guard(single, method_name)), method_name)
        return self._timed(self._guard(method, method_name), method_name)

    def _guard(self, method: Method, method_name: str) -> Method:
        def guarded(record: Any) -> None:
            try:
                method(record)
            except (KeyboardInterrupt, SystemExit):
                raise
            # A sink's error, even a cancel, is never the job's.
            except BaseException as error:  # noqa: BLE001
                self._note_error(method_name, error)

        return guarded

    def _timed(self, method: Method, method_name: str) -> Method:
        now_ns, budget = time.monotonic_ns, self._budget

        def timed(record: Any) -> None:
            began_ns = now_ns()
            method(record)
            if budget.is_too_much(began_ns, now_ns()):
                self._note_slowness(method_name)

        return timed

    def _note_error(self, method_name: str, error: BaseException) -> None:
        if self._error_throttle.allows():
            logger.warning(
                "the metrics sink %s raised in %s, and its record was dropped%s",
                self._sink_name, method_name, self._error_throttle.held_back_text(),
                exc_info=error, extra=self._about(method_name),
            )  # fmt: skip

    def _note_slowness(self, method_name: str) -> None:
        if self._slow_throttle.allows():
            logger.warning(
                "the metrics sink %s takes more than a fifth of the worker's time in %s%s",
                self._sink_name, method_name, self._slow_throttle.held_back_text(),
                extra=self._about(method_name),
            )  # fmt: skip

    @property
    def _sink_name(self) -> str:
        return type(self._sink).__name__

    def _about(self, method_name: str) -> dict[str, Any]:
        return {"sink": self._sink_name, "method": method_name}


def _to_all(methods: Sequence[Method]) -> Method:
    def call_all(record: Any) -> None:
        for method in methods:
            method(record)

    return call_all


def _for_each(method: Method) -> Method:
    def call_each(batch: Sequence[Any]) -> None:
        for record in batch:
            method(record)

    return call_each
