"""A history that a test spells out attempt by attempt, with holes where it wants them."""

from __future__ import annotations

from chasquimq.model.delivery import Failure
from chasquimq.wire.history_writer import HistoryRows, encode_history
from support.attempts import attempts, block_of
from support.feed import Feed

# A job's id, its attempt, the number of its outcome, and its error.
Told = tuple[str, int, int, Failure | None]


class HistoryFeed(Feed):
    """The writing end of one queue, in more detail."""

    def rows(self, told: list[Told], **columns) -> list[str]:
        """One entry with these attempts; each starts a second after the one before it."""
        rows = attempts(len(told), **columns)
        rows.job_ids = [job_id for job_id, *_ in told]
        rows.attempts = [number for _, number, _, _ in told]
        rows.outcomes = [outcome for _, _, outcome, _ in told]
        rows.failures = [failure for *_, failure in told]
        rows.started_us = [
            us + number * 1_000_000
            for us, number in zip(rows.started_us, rows.attempts, strict=True)
        ]
        return self.packed(rows)

    def packed(self, rows: HistoryRows) -> list[str]:
        """One entry with these rows, however odd they are."""
        fields = encode_history(block_of(rows), worker="worker-1", run="run-1", seq=self._seq)
        self._seq += 1
        return self._add(self.keys.history, [fields])

    def skip(self, count: int) -> None:
        """Leave numbers out, as an entry that was lost does."""
        self._seq += count
