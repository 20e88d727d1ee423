"""Which worker runs have an open end, and when their rows may have been lost with them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from chasquimq.spark.lake.durable import write_durably

Row = Mapping[str, Any]
# A name of a worker, and its queue: names of different queues have nothing to do with each other.
Living = Collection[tuple[str, str]]


class OpenRun(NamedTuple):
    """A run that never closed: it wrote until `last_at`, and was found dead at `dead_at`."""

    queue: str
    last_at: datetime
    dead_at: datetime

    def may_explain(self, since: datetime, until: datetime) -> bool:
        """Whether its worker may have died, with rows it had not written, between two looks."""
        return self.last_at <= until and self.dead_at > since


class FoundDead:
    """When each run was first found dead, kept in a file: it lost nothing after that."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def first_seen(
        self, runs: Iterable[str], queues: Collection[str], now: datetime
    ) -> dict[str, datetime]:
        """The moments of all these runs; those that are new are of now.

        Runs of other queues than these are left alone, and stay as they were.
        """
        known = self._read()
        others = {run: at for run, at in known.items() if run.split(" ")[0] not in queues}
        seen = others | {run: known.get(run, now) for run in runs}
        if seen != known:
            self._write(seen)
        return seen

    def _read(self) -> dict[str, datetime]:
        try:
            noted: dict[str, str] = json.loads(self._path.read_text())
            return {run: datetime.fromisoformat(at) for run, at in noted.items()}
        except (FileNotFoundError, ValueError):
            # A lost note counts as seen now, so that no run is accused.
            return {}

    def _write(self, seen: Mapping[str, datetime]) -> None:
        noted = {run: at.isoformat() for run, at in sorted(seen.items())}
        write_durably(self._path, json.dumps(noted).encode())


def open_runs(
    runs: Sequence[Row], queues: Collection[str], alive: Living, found: FoundDead, now: datetime
) -> list[OpenRun]:
    """Runs of these queues that did not close and whose workers are gone.

    A worker that was killed and came back under its name lives in its newest run alone.
    """
    by_worker: dict[tuple[str, str], list[Row]] = {}
    ours = [run for run in runs if run["queue"] in queues]
    for run in sorted(ours, key=lambda one: one["first_at"]):
        by_worker.setdefault((run["queue"], run["worker"]), []).append(run)
    dead = [
        (run, later)
        for worker, lives in by_worker.items()
        for run, later in zip(lives, [*lives[1:], None], strict=True)
        if not run["is_ended"] and not (later is None and worker in alive)
    ]
    seen = found.first_seen([_key(run) for run, _ in dead], queues, now)
    return [
        OpenRun(run["queue"], run["last_at"], _dead_at(seen[_key(run)], later))
        for run, later in dead
    ]


def _key(run: Row) -> str:
    return f"{run['queue']} {run['run']}"


def _dead_at(found_at: datetime, later: Row | None) -> datetime:
    return found_at if later is None else min(found_at, later["first_at"])
