"""How far a pipeline has come: rows and newest facts of its tables, and what is not read yet."""

# ruff: noqa: S608  names are our own
from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from chasquimq.settings import ConnectionSettings
from chasquimq.spark.lake.checkpoints import Checkpoint
from chasquimq.spark.lake.reading import open_table
from chasquimq.spark.lake.tables import TABLES
from chasquimq.spark.offsets import Offsets, from_json
from chasquimq.spark.pipeline.channels import CHANNELS
from chasquimq.spark.query.queries import Answers
from chasquimq.store.inspect.ranges import RangeStore
from chasquimq.wire.keys import QueueKeys

# The column that says when a row's fact happened; gold_retries looks ahead and has none.
_MOMENTS: Final = {
    "bronze_attempts": "started_at",
    "bronze_events": "ts",
    "bronze_gaps": "detected_at",
    "bronze_runs": "last_at",
    "silver_attempts": "ended_at",
    "silver_jobs": "updated_at",
    "silver_jobs_parts": "updated_at",
    "gold_minute": "window_start",
    "gold_failures": "last_seen",
    "gold_slo": "window_start",
    "gold_backlog": "sampled_at",
    "gold_forecast": "made_at",
    "gold_audit": "audited_at",
}


class Extent(NamedTuple):
    """How much a table holds; rows as SQL shows them, those of one key merged."""

    table: str
    rows: int
    files: int
    newest_at: datetime | None


class Place(NamedTuple):
    """Where a channel stands: its last batch, when that was done, and its offsets."""

    channel: str
    batch_id: int
    done_at: datetime
    offsets: Offsets


class Behind(NamedTuple):
    """Entries of a queue that were not read yet, and how many of them are gone already.

    None: they are not counted.
    """

    queue: str
    channel: str
    entries: int | None
    gone: int | None


def extents(answers: Answers) -> list[Extent]:
    """Every table that is there."""
    return [_extent(answers, name) for name in TABLES if open_table(answers.lake, name)]


def places(lake: Path) -> Iterator[Place]:
    """The channels that have finished a batch."""
    for channel in CHANNELS:
        checkpoint = Path(Checkpoint(lake, channel).location)
        done = [path for path in checkpoint.glob("commits/*") if path.name.isdecimal()]
        last = max(done, key=lambda path: int(path.name), default=None)
        if last is not None:
            done_at = datetime.fromtimestamp(last.stat().st_mtime, UTC)
            yield Place(channel, int(last.name), done_at, _offsets(checkpoint, last.name))


def behind(lake: Path, connection: ConnectionSettings) -> list[Behind]:
    """What a server has that the lake has not; every queue that was ever read."""
    store = RangeStore(connection, name="chasqui-status")
    try:
        return [one for place in places(lake) for one in _behind(store, place)]
    finally:
        store.close()


def _extent(answers: Answers, name: str) -> Extent:
    moment = _MOMENTS.get(name)
    newest = f"max({moment})" if moment else "null"
    found = open_table(answers.lake, name)
    (row,) = answers.ask(f"select count(*) as rows, {newest} as newest_at from {name}")
    return Extent(name, row["rows"], len(found.file_uris()) if found else 0, row["newest_at"])


def _offsets(checkpoint: Path, batch: str) -> Offsets:
    """Spark's file: its version, facts about the batch, then a line for each source."""
    lines = (checkpoint / "offsets" / batch).read_text().splitlines()
    return from_json(json.loads(lines[2])) if len(lines) > 2 else {}


def _behind(store: RangeStore, place: Place) -> Iterator[Behind]:
    queues = list(place.offsets)
    keys = [getattr(QueueKeys(queue), place.channel) for queue in queues]
    for queue, facts in zip(queues, store.facts(keys), strict=True):
        position = place.offsets[queue]
        if facts.added is None or position.count is None:
            yield Behind(queue, place.channel, None, None)
            continue
        # Below zero: the stream was made again, and all of it is ahead.
        ahead = facts.added - position.count
        ahead = ahead if ahead >= 0 else facts.added
        yield Behind(queue, place.channel, ahead, max(0, ahead - facts.length))
