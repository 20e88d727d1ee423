"""Finished attempts, gathered column by column: what a worker knows, before it is packed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from chasquimq.model.attempt_row import AttemptOutcome
from chasquimq.model.delivery import ready_times_ms

if TYPE_CHECKING:
    from chasquimq.model.delivery import Arrival, Delivery
    from chasquimq.model.verdict import Failure


# In the year 5138; clocks and calendars of readers go further, but not by much.
TIME_MS_MAX = 10**14


class HistoryRows:
    """Finished attempts of one worker, waiting to be packed; each column is a plain list."""

    __slots__ = (
        "attempts", "backoffs_ms", "deliveries", "due_ms", "durations_us", "enqueued_ms",
        "failures", "job_ids", "names", "outcomes", "ready_ms", "started_us",
    )  # fmt: skip

    def __init__(self) -> None:
        self.job_ids: list[str] = []
        self.names: list[str] = []
        self.attempts: list[int] = []
        self.outcomes: list[int] = []
        self.enqueued_ms: list[int | None] = []
        self.ready_ms: list[int | None] = []
        self.due_ms: list[int | None] = []
        self.started_us: list[int | None] = []
        self.durations_us: list[int] = []
        self.deliveries: list[int] = []
        self.backoffs_ms: list[int] = []
        self.failures: list[Failure | None] = []

    def __len__(self) -> int:
        return len(self.job_ids)

    @property
    def base_ms(self) -> int:
        """The first start, or where nothing started the first that became ready."""
        first_us = next((us for us in self.started_us if us is not None), None)
        if first_us is not None:
            return first_us // 1_000
        return min([ms for ms in self.ready_ms if ms is not None], default=0)

    def add_completed(self, batch: Sequence[Delivery], offset_us: int) -> None:
        """Add jobs that are done; `offset_us` is the server's clock minus our monotonic one."""
        count = len(batch)
        if not count:
            return
        self._add_deliveries(batch)
        runs_before = [one.spent + one.earlier for one in batch]
        if any(runs_before):
            self.attempts += [runs + 1 for runs in runs_before]
            self.deliveries += [one.earlier + 1 for one in batch]
        else:
            self.attempts += [1] * count
            self.deliveries += [1] * count
        self.started_us += [one.started_ns // 1_000 + offset_us for one in batch]
        self.outcomes += [AttemptOutcome.COMPLETED.value] * count
        self.backoffs_ms += [0] * count
        self.failures += [None] * count

    def add(
        self,
        delivery: Delivery,
        outcome: AttemptOutcome,
        offset_us: int,
        *,
        backoff_ms: int = 0,
        failure: Failure | None = None,
    ) -> None:
        """Add one attempt that came to anything."""
        started_ns = delivery.started_ns
        self._add_deliveries((delivery,))
        self.attempts.append(delivery.run_number if started_ns else 0)
        self.deliveries.append(delivery.earlier + 1)
        self.started_us.append(started_ns // 1_000 + offset_us if started_ns else None)
        self.outcomes.append(outcome.value)
        self.backoffs_ms.append(backoff_ms)
        self.failures.append(failure)

    def add_arrival(self, arrival: Arrival, failure: Failure | None = None) -> None:
        """Add an entry that could not become a delivery: only its name and its place are known."""
        self.job_ids.append("")
        self.names.append(arrival.name)
        self.attempts.append(0)
        self.outcomes.append(AttemptOutcome.REJECTED.value)
        self.enqueued_ms.append(None)
        self.ready_ms += _sane([int(arrival.entry_id.partition(b"-")[0])])
        self.due_ms.append(None)
        self.started_us.append(None)
        self.durations_us.append(0)
        self.deliveries.append(1)
        self.backoffs_ms.append(0)
        self.failures.append(failure)

    def _add_deliveries(self, batch: Sequence[Delivery]) -> None:
        # A comprehension a column: half the time of a loop that fills them row by row.
        self.job_ids += [one.job_id for one in batch]
        self.names += [one.name for one in batch]
        self.enqueued_ms += _sane([one.created_at_ms for one in batch])
        self.ready_ms += _sane(ready_times_ms(batch))
        self.due_ms += _sane_dues([one.due_ms for one in batch])
        self.durations_us += [one.duration_us for one in batch]


# Nearly all rows of a busy queue are alike: the short ways take half the time of the long ones.
def offsets(moments: list[int | None], base: int) -> list[int | None]:
    """How far each is from the base; what is unknown stays so."""
    try:
        return [moment - base for moment in cast("list[int]", moments)]
    except TypeError:  # some are unknown
        return [None if moment is None else moment - base for moment in moments]


def _sane(times_ms: list[int]) -> list[int | None]:
    """A time that no clock shows is unknown: it must not cost the rows beside it."""
    if max(times_ms) <= TIME_MS_MAX:
        return cast("list[int | None]", times_ms)
    return [ms if ms <= TIME_MS_MAX else None for ms in times_ms]


def _sane_dues(times_ms: list[int | None]) -> list[int | None]:
    if times_ms.count(None) == len(times_ms):
        return times_ms
    return [ms if ms is not None and ms <= TIME_MS_MAX else None for ms in times_ms]
