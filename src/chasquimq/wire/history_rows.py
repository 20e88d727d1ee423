"""Finished attempts, gathered column by column: what a worker knows, before it is packed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from chasquimq.model.attempt_row import AttemptOutcome

if TYPE_CHECKING:
    from chasquimq.model.delivery import Arrival, Delivery
    from chasquimq.model.verdict import Failure


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

    def take(self, count: int) -> HistoryRows:
        """The first rows, which are no longer here."""
        taken = HistoryRows()
        for column in self.__slots__:
            values: list[Any] = getattr(self, column)
            setattr(taken, column, values[:count])
            del values[:count]
        return taken

    def add_completed(self, batch: Sequence[Delivery], offset_us: int) -> None:
        """Add jobs that are done; `offset_us` is the server's clock minus our monotonic one."""
        self._add_deliveries(batch, AttemptOutcome.COMPLETED, offset_us)
        self.backoffs_ms += [0] * len(batch)
        self.failures += [None] * len(batch)

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
        self._add_deliveries((delivery,), outcome, offset_us)
        self.backoffs_ms.append(backoff_ms)
        self.failures.append(failure)

    def add_arrival(self, arrival: Arrival, failure: Failure | None = None) -> None:
        """Add an entry that could not become a delivery: only its name and its place are known."""
        self.job_ids.append("")
        self.names.append(arrival.name)
        self.attempts.append(0)
        self.outcomes.append(AttemptOutcome.REJECTED.value)
        self.enqueued_ms.append(None)
        self.ready_ms.append(int(arrival.entry_id.partition(b"-")[0]))
        self.due_ms.append(None)
        self.started_us.append(None)
        self.durations_us.append(0)
        self.deliveries.append(1)
        self.backoffs_ms.append(0)
        self.failures.append(failure)

    def _add_deliveries(
        self, batch: Sequence[Delivery], outcome: AttemptOutcome, offset_us: int
    ) -> None:
        # A comprehension a column: half the time of a loop that fills them row by row.
        self.job_ids += [one.job_id for one in batch]
        self.names += [one.name for one in batch]
        self.attempts += [one.spent + one.earlier + 1 if one.started_ns else 0 for one in batch]
        self.outcomes += [outcome.value] * len(batch)
        self.enqueued_ms += [one.created_at_ms for one in batch]
        self.ready_ms += _ready_ms(batch)
        self.due_ms += [one.due_ms for one in batch]
        self.started_us += [
            one.started_ns // 1_000 + offset_us if one.started_ns else None for one in batch
        ]
        self.durations_us += [one.duration_us for one in batch]
        self.deliveries += [one.earlier + 1 for one in batch]


def _ready_ms(batch: Sequence[Delivery]) -> list[int]:
    """When each became ready, from its entry id; a busy queue has many in one millisecond."""
    heads = [one.entry_id.partition(b"-")[0] for one in batch]
    known = {head: int(head) for head in set(heads)}
    return [known[head] for head in heads]
