"""Samples of queues as rows of backlog and forecast."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from chasquimq.model.forecast import WINDOW_MS, Forecast, Sample, forecast
from chasquimq.spark.columns import moment_of
from chasquimq.spark.lake.tables import GOLD_BACKLOG, GOLD_FORECAST
from chasquimq.spark.pipeline.targets import Targets

if TYPE_CHECKING:
    from chasquimq.spark.lake.lake import Lake

# More samples than these are not kept for rows that could not be written yet.
_WAITING_MAX: Final = 100_000
_LAST_MS: Final = 4_102_444_800_000
# How many entries a queue had ever had, and how many of them had left.
Counts = tuple[int | None, int | None]


class Backlog:
    """Samples on their way to the tables; each row says what happened since the row before it."""

    def __init__(self, lake: Lake, targets_ms: Mapping[str, int]) -> None:
        self._lake = lake
        self._targets = Targets(lake, targets_ms)
        self._recent: dict[str, deque[Sample]] = {}
        self._last: dict[str, Counts] | None = None
        self._waiting: deque[Sample] = deque(maxlen=_WAITING_MAX)
        self._lock = threading.Lock()

    def add(self, samples: Iterable[Sample]) -> None:
        with self._lock:
            self._waiting.extend(samples)

    def rows(self) -> dict[str, pa.Table]:
        """Rows for all samples that have none yet; the caller must write them."""
        with self._lock:
            samples, self._waiting = list(self._waiting), deque(maxlen=_WAITING_MAX)
        if not samples:
            return {}
        if self._last is None:
            self._last = last_counts(self._lake)
        backlog = [self._backlog_row(one, self._last) for one in samples]
        newest = {one.queue: one for one in samples}
        forecasts = [_forecast_row(self._look_ahead(one)) for one in newest.values()]
        return {
            GOLD_BACKLOG.name: pa.Table.from_pylist(backlog, GOLD_BACKLOG.arrow),
            GOLD_FORECAST.name: pa.Table.from_pylist(forecasts, GOLD_FORECAST.arrow),
        }

    def _backlog_row(self, sample: Sample, last: dict[str, Counts]) -> dict[str, object]:
        added, left = last.get(sample.queue, (None, None))
        last[sample.queue] = (sample.added, sample.left)
        self._remember(sample)
        at = moment_of(sample.at_ms)
        return {
            "queue": sample.queue,
            "sampled_at": at,
            "ready": sample.ready,
            "running": sample.running,
            "delayed": sample.delayed,
            "dlq": sample.dlq,
            "entries_added": sample.added,
            "arrived": _since(added, sample.added),
            "finished": _since(left, sample.left),
            "oldest_ms": sample.oldest_ms,
            "consumers": sample.consumers,
            "event_date": at.date(),
        }

    def _remember(self, sample: Sample) -> None:
        recent = self._recent.setdefault(sample.queue, deque())
        recent.append(sample)
        # One before the window is kept: where looks are seldom, it is all there is.
        while len(recent) > 1 and sample.at_ms - recent[1].at_ms > WINDOW_MS:
            recent.popleft()

    def _look_ahead(self, sample: Sample) -> Forecast:
        return forecast(list(self._recent[sample.queue]), self._targets.of(sample.queue))


def last_counts(lake: Lake) -> dict[str, Counts]:
    """How many entries each queue had ever had, and how many had left, when last sampled."""
    days = lake.days(GOLD_BACKLOG.name)
    if not days:
        return {}
    columns = ["queue", "sampled_at", "entries_added", "ready", "running"]
    rows = lake.rows(GOLD_BACKLOG.name, columns, days[-1]).sort_by("sampled_at").to_pylist()
    return {row["queue"]: (row["entries_added"], _left(row["entries_added"], row)) for row in rows}


def _left(added: int | None, row: Mapping[str, int]) -> int | None:
    return None if added is None else added - row["ready"] - row["running"]


def _since(before: int | None, now: int | None) -> int | None:
    # A stream that was deleted meanwhile counts from zero again.
    if before is None or now is None or now < before:
        return None
    return now - before


def _forecast_row(made: Forecast) -> dict[str, object]:
    at = moment_of(made.made_at_ms)
    return {
        "queue": made.queue,
        "made_at": at,
        "arrival_rate": made.arrival_rate,
        "departure_rate": made.departure_rate,
        "clears_at": _maybe_moment(made.clears_at_ms),
        "never_clears": made.never_clears,
        "breach_at": _maybe_moment(made.breach_at_ms),
        "workers_needed": made.workers_needed,
        "event_date": at.date(),
    }


def _maybe_moment(ms: int | None) -> datetime | None:
    # Centuries ahead is never, and no calendar goes on for ever.
    return None if ms is None or ms > _LAST_MS else moment_of(ms)
