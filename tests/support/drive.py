"""Does with a stream reader what Spark does, in its order, without a JVM."""

from __future__ import annotations

import json
import pickle

from pyspark.sql.streaming.datasource import ReadAllAvailable


class Drive:
    """One query: its offset is what a checkpoint would hold."""

    def __init__(
        self, source: type, options: dict[str, str], *, offset: dict | None = None
    ) -> None:
        self._source = source
        self._options = options
        self._reader = self._opened()
        self.offset = self._reader.initialOffset() if offset is None else offset
        self.tasks: list = []

    def batch(self, *, everything: bool = False) -> list[dict]:
        """One batch, its rows; tasks and reader travel as they do to executors."""
        start = self.offset
        limit = ReadAllAvailable() if everything else self._reader.getDefaultReadLimit()
        end = _stored(self._reader.latestOffset(start, limit))
        rows = self.rows_between(start, end)
        self.offset = end
        return rows

    def batches(self, *, most: int = 50) -> list[list[dict]]:
        """Batches until nothing moves any more, as a query that reads what there is now."""
        self._reader.prepareForTriggerAvailableNow()
        done = []
        for _ in range(most):
            before = self.offset
            rows = self.batch()
            if self.offset == before:
                return done
            done.append(rows)
        raise AssertionError(f"the query still moves after {most} batches, at {self.offset}")

    def rows_between(self, start: dict, end: dict) -> list[dict]:
        """The rows of a batch, first or again."""
        if start == end:
            return []
        self.tasks = [
            pickle.loads(pickle.dumps(one)) for one in self._reader.partitions(start, end)
        ]
        return [row for task in self.tasks for row in self.read(task)]

    def read(self, task) -> list[dict]:
        away = pickle.loads(pickle.dumps(self._opened()))
        return [row for batch in away.read(task) for row in batch.to_pylist()]

    def restarted(self, **options: str) -> Drive:
        """The same query in a new process, from its checkpoint."""
        return Drive(self._source, self._options | options, offset=self.offset)

    def _opened(self):
        return self._source(self._options).streamReader(None)


def _stored(offset: dict) -> dict:
    return json.loads(json.dumps(offset))
