"""Writers that were killed between two tables: whoever holds the lake next finds it whole."""

from __future__ import annotations

import pytest

from chasquimq.spark.lake.checkpoints import Checkpoint, only_pipeline
from chasquimq.spark.lake.extent import last_ids
from chasquimq.spark.lake.files import write_table
from chasquimq.spark.lake.lake import Change, Lake, Once
from chasquimq.spark.lake.maintenance import tidy
from chasquimq.spark.lake.manifest import Manifest
from chasquimq.spark.lake.tables import BRONZE_ATTEMPTS
from support.rows import DAY, NOON, attempt, batch

ONCE = Once("writer", 1)
MINUTE = {"queue": "mail", "name": "send", "window_start": NOON, "started": 1, "event_date": DAY}


@pytest.fixture
def lake(tmp_path) -> Lake:
    lake = Lake(tmp_path / "lake")
    lake.create_missing()
    return lake


@pytest.fixture
def killed(lake, monkeypatch):
    """Writes a manifest down and dies when so many of its changes are committed."""

    def die_after(count: int, writer: str, *changes: Change) -> None:
        pending = Checkpoint(lake.path, writer).pending
        pending.write(Manifest(once=ONCE, changes=changes))
        for change in changes[:count]:
            lake.commit(change, ONCE)

    return die_after


def written(lake: Lake, table: str, *rows: dict, removes: bool = False) -> Change:
    files = write_table(lake.path, table, batch(table, *rows), "test")
    gone = lake.relative(table, lake.files(table)) if removes else []
    return Change(table=table, adds=files, removes=gone)


def started(lake: Lake) -> int:
    return sum(lake.rows("gold_minute", ["started"]).column("started").to_pylist())


@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_backfill_that_was_killed_is_ended_before_its_files_are_compacted(lake, killed, count):
    for _ in range(5):
        lake.commit(written(lake, "gold_minute", MINUTE))
    remade = written(lake, "gold_minute", MINUTE | {"started": 5}, removes=True)
    killed(count, "backfill", written(lake, "gold_slo", {"event_date": DAY}), remade)

    tidy(Lake(lake.path))
    with only_pipeline(Lake(lake.path)):
        pass

    assert (started(lake), lake.table("gold_slo").count()) == (5, 1)


@pytest.mark.parametrize("writer", ["history", "events"])
@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_batch_that_was_killed_is_ended_before_anything_is_made_of_it(
    lake, killed, writer, count
):
    bronze = written(lake, "bronze_attempts", attempt())
    killed(count, writer, bronze, written(lake, "gold_minute", MINUTE))

    with only_pipeline(Lake(lake.path)):
        seen = lake.table("bronze_attempts").count(), started(lake)

    assert seen == (1, 1)
    assert Checkpoint(lake.path, writer).pending.read() is None


def test_where_to_begin_without_a_checkpoint_is_behind_the_batch_that_was_killed(lake, killed):
    killed(0, "history", written(lake, "bronze_attempts", attempt(stream_id="7-1")))

    with only_pipeline(Lake(lake.path)):
        last = last_ids(lake, BRONZE_ATTEMPTS, ["mail"])

    assert last == {"mail": "7-1"}


def test_what_was_open_is_not_doubled_by_a_batch_of_events_that_was_killed(lake, killed):
    row = {"queue": "mail", "job_id": "a", "event": "active", "event_date": DAY}
    lake.commit(written(lake, "silver_open", row))
    bronze = written(lake, "bronze_events", row)
    killed(1, "events", bronze, written(lake, "silver_open", row, removes=True))

    tidy(Lake(lake.path))

    assert lake.table("silver_open").count() == 1


def test_files_that_a_killed_writer_needed_for_a_moment_are_gone(lake):
    staged = Checkpoint(lake.path, "backfill").staging / "folded_attempts"
    staged.mkdir(parents=True)

    with only_pipeline(Lake(lake.path)):
        pass

    assert not staged.exists()
