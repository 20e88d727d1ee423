"""Labels around a sink: whose numbers these are, said once and not in every record."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from chasquimq.errors import SettingsError
from chasquimq.telemetry.sink import HAPPENINGS, MetricsSink

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
        for happening in HAPPENINGS:
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
