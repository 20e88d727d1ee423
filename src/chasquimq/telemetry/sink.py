"""Defines the interface of a metrics sink, and wraps sinks: labels, fan-out, protection from errors."""

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


class MetricsSink:
    """Override what you want to hear of; the rest is let go, and so is what later versions add.

    Methods are called on the event loop, between jobs: count and return. What is raised here
    harms no job. Records of jobs come in batches; a sink that does not care is given them singly.
    A batch is valid during the call, and may make its records as they are looked at: keep
    `list(batch)`, or it keeps the jobs and their payloads.
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
    """Whether no record would reach anybody, so that none need be made."""
    return sink is None or not any(listens(sink, happening) for happening in RECORD_METHODS)


def listens(sink: MetricsSink, happening: str) -> bool:
    """Whether this method of the sink, or of what it wraps, does anything."""
    if not is_inherited(getattr(sink, happening), happening):
        return True
    return happening in BATCHES and listens(sink, BATCHES[happening])


def is_inherited(method: Any, happening: str) -> bool:
    """Whether a sink left this method as it came."""
    return getattr(method, "__func__", None) is getattr(MetricsSink, happening)


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
    """Adds labels to all that passes; a sink that knows no labels gets the records as they are.

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
        for happening in RECORD_METHODS:
            # On the instance: a wrapper costs nothing per record, however many are stacked.
            setattr(self, happening, getattr(target, happening))


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


_WINDOW_NS = 1_000_000_000
_SPENT_NS_MAX = 200_000_000


class TimeBudget:
    """A fifth of each second may be spent; one long call and many short ones weigh the same."""

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
    """One sink for what `sink`, which is safe, and another one are to hear; None: nobody listens."""
    safe = safe_sink(other)
    if sink is None or safe is None:
        return safe or sink
    return CompositeSink([sink, safe])


def safe_sink(sink: MetricsSink | None) -> SafeSink | None:
    """The sink behind a guard; None for one that listens to nothing, which so costs nothing."""
    guarded = None if sink is None else SafeSink(sink)
    return None if is_noop(sink) else guarded


class CompositeSink(MetricsSink):
    """Passes every record to each of several sinks that listens to it, one after the other.

    Make each of them safe: what one raises keeps the record from those behind it.
    """

    def __init__(self, sinks: Sequence[MetricsSink]) -> None:
        for happening in RECORD_METHODS:
            methods = [getattr(one, happening) for one in sinks if listens(one, happening)]
            if methods:
                # On the instance, so that what nobody listens to stays a no-op.
                setattr(self, happening, methods[0] if len(methods) == 1 else _to_all(methods))


class SafeSink(MetricsSink):
    """Passes every record on; a sink that raises, or is slow, is logged once, then ever less often.

    A sink that takes records singly loses only those it raised for.
    """

    def __init__(self, sink: MetricsSink, *, pace: LogThrottle | None = None) -> None:
        # Callers lie.
        if not isinstance(sink, MetricsSink):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SettingsError("metrics", sink, "a MetricsSink", hint="subclass it")
        self._sink = sink
        self._raise_pace = pace or LogThrottle()
        self._slow_pace = LogThrottle()
        self._burden = TimeBudget()
        for happening in RECORD_METHODS:
            # On the instance, so that a no-op stays one.
            setattr(self, happening, self._guarded(happening))

    def _guarded(self, happening: str) -> Method:
        method: Method = getattr(self._sink, happening)
        if not listens(self._sink, happening):
            return method
        if happening in BATCHES and is_inherited(method, happening):
            single: Method = getattr(self._sink, BATCHES[happening])
            return self._timed(_for_each(self._guard(single, happening)), happening)
        return self._timed(self._guard(method, happening), happening)

    def _guard(self, tell: Method, happening: str) -> Method:
        def guarded(record: Any) -> None:
            try:
                tell(record)
            except (KeyboardInterrupt, SystemExit):
                raise
            # A sink's error, even a cancel, is never the job's.
            except BaseException as error:  # noqa: BLE001
                self._note_error(happening, error)

        return guarded

    def _timed(self, tell: Method, happening: str) -> Method:
        now_ns, burden = time.monotonic_ns, self._burden

        def timed(record: Any) -> None:
            began_ns = now_ns()
            tell(record)
            if burden.is_too_much(began_ns, now_ns()):
                self._note_slowness(happening)

        return timed

    def _note_error(self, happening: str, error: BaseException) -> None:
        if self._raise_pace.allows():
            logger.warning(
                "the metrics sink %s raised in %s, and its record was dropped%s",
                self._sink_name, happening, self._raise_pace.held_back_text(),
                exc_info=error, extra=self._about(happening),
            )  # fmt: skip

    def _note_slowness(self, happening: str) -> None:
        if self._slow_pace.allows():
            logger.warning(
                "the metrics sink %s takes more than a fifth of the worker's time in %s%s",
                self._sink_name, happening, self._slow_pace.held_back_text(),
                extra=self._about(happening),
            )  # fmt: skip

    @property
    def _sink_name(self) -> str:
        return type(self._sink).__name__

    def _about(self, happening: str) -> dict[str, Any]:
        return {"sink": self._sink_name, "happening": happening}


def _to_all(methods: Sequence[Method]) -> Method:
    def tell_all(record: Any) -> None:
        for method in methods:
            method(record)

    return tell_all


def _for_each(tell: Method) -> Method:
    def tell_each(batch: Sequence[Any]) -> None:
        for record in batch:
            tell(record)

    return tell_each
