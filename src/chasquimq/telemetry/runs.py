"""Runs that completed, column by column: a record for each would cost more than counting them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, overload

from chasquimq.model.delivery import ready_times_ms
from chasquimq.telemetry.records import JobOutcome

if TYPE_CHECKING:
    from chasquimq.model.delivery import Delivery


class CompletedRuns(Sequence[JobOutcome]):
    """A batch of runs: records for whoever looks at them one by one, columns for whoever counts.

    It holds the deliveries themselves, so it should not outlive the call that it is given to.
    `offset_us` is the server's clock minus our monotonic one.
    """

    __slots__ = ("_deliveries", "_offset_us")

    def __init__(self, deliveries: Sequence[Delivery], offset_us: int) -> None:
        self._deliveries = deliveries
        self._offset_us = offset_us

    def __len__(self) -> int:
        return len(self._deliveries)

    def __iter__(self) -> Iterator[JobOutcome]:
        runs = zip(self._deliveries, self.waits_us, strict=True)
        for one, wait_us in runs:
            yield JobOutcome("ok", one.run_number, one.duration_us, one.name, wait_us)

    @overload
    def __getitem__(self, at: int) -> JobOutcome: ...
    @overload
    def __getitem__(self, at: slice) -> list[JobOutcome]: ...
    def __getitem__(self, at: int | slice) -> JobOutcome | list[JobOutcome]:
        if isinstance(at, slice):
            return list(CompletedRuns(self._deliveries[at], self._offset_us))
        (run,) = CompletedRuns([self._deliveries[at]], self._offset_us)
        return run

    @property
    def names(self) -> list[str]:
        return [one.name for one in self._deliveries]

    @property
    def durations_us(self) -> list[int]:
        return [one.duration_us for one in self._deliveries]

    @property
    def waits_us(self) -> list[int]:
        offset_us, deliveries = self._offset_us, self._deliveries
        pairs = zip(deliveries, ready_times_ms(deliveries), strict=True)
        waits_us = [one.started_ns // 1_000 + offset_us - ms * 1_000 for one, ms in pairs]
        # Clocks may disagree; nothing waits for less than no time.
        if waits_us and min(waits_us) < 0:
            return [max(0, wait_us) for wait_us in waits_us]
        return waits_us


class RunColumns:
    """Columns of many batches, kept until somebody adds them up."""

    __slots__ = ("_durations_us", "_names", "_waits_us")

    def __init__(self) -> None:
        self._names: list[str] = []
        self._durations_us: list[int] = []
        self._waits_us: list[int] = []

    def __len__(self) -> int:
        return len(self._names)

    def add(self, runs: CompletedRuns) -> None:
        self._names += runs.names
        self._durations_us += runs.durations_us
        self._waits_us += runs.waits_us

    def by_name(self) -> Iterator[tuple[str, list[int], list[int]]]:
        """Each name with the durations and the waits of its runs."""
        if len(set(self._names)) == 1:
            yield self._names[0], self._durations_us, self._waits_us
            return
        groups: defaultdict[str, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        columns = zip(self._names, self._durations_us, self._waits_us, strict=True)
        for name, duration_us, wait_us in columns:
            durations_us, waits_us = groups[name]
            durations_us.append(duration_us)
            waits_us.append(wait_us)
        for name, (durations_us, waits_us) in groups.items():
            yield name, durations_us, waits_us
