"""A lake without a JVM: files that count only once they are committed, and each change once."""

from __future__ import annotations

import fcntl
import os
import time
from datetime import timedelta
from pathlib import Path

import duckdb
import polars as pl
import pytest

from chasquimq.errors import SettingsError
from chasquimq.spark.lake.checkpoints import Checkpoint, only_pipeline, reserved
from chasquimq.spark.lake.files import write_table
from chasquimq.spark.lake.lake import Change, Lake, Once
from chasquimq.spark.lake.manifest import Manifest, ManifestFile
from chasquimq.spark.lake.table_shape import Column, Table
from chasquimq.spark.lake.tables import TABLES
from support.rows import DAY, attempt, batch, dated

TABLE = "bronze_attempts"
ONCE = Once("reader", 0)


@pytest.fixture
def lake(tmp_path) -> Lake:
    lake = Lake(tmp_path / "lake")
    lake.create_missing()
    return lake


def write(lake: Lake, *rows, table: str = TABLE) -> Change:
    return Change(table=table, adds=write_table(lake.path, table, batch(table, *rows), "test"))


def row_count(lake: Lake, table: str = TABLE) -> int:
    return lake.table(table).count()


def test_every_table_is_there_from_the_start(lake):
    assert {name: lake.table(name).count() for name in TABLES} == dict.fromkeys(TABLES, 0)


def test_rows_count_only_once_they_are_committed(lake):
    change = write(lake, attempt())

    before = row_count(lake)
    lake.commit(change, ONCE)

    assert (before, row_count(lake)) == (0, 1)


def test_a_change_is_made_once(lake):
    answers = [lake.commit(write(lake, attempt()), ONCE) for _ in range(3)]

    assert answers == [True, False, False]
    assert row_count(lake) == 1


def test_a_change_with_a_lower_number_was_made_before(lake):
    lake.commit(write(lake, attempt()), Once("reader", 7))

    assert lake.is_done(TABLE, Once("reader", 6))
    assert not lake.is_done(TABLE, Once("reader", 8))
    assert not lake.is_done(TABLE, Once("another", 0))


def test_the_next_change_has_a_higher_number_though_the_clock_stepped_back(lake):
    ahead_us = time.time_ns() // 1_000 + 3_600_000_000
    lake.commit(write(lake, attempt()), Once("remaker", ahead_us))

    after = lake.next_once("remaker", [TABLE, "silver_attempts"])
    other = lake.next_once("remaker", ["silver_attempts"])

    assert after == Once("remaker", ahead_us + 1)
    assert other.version < ahead_us


def test_each_table_has_its_own_count_of_changes(lake):
    lake.commit(write(lake, attempt()), ONCE)

    assert not lake.is_done("silver_attempts", ONCE)


def test_files_join_and_leave_at_the_same_moment(lake):
    lake.commit(write(lake, attempt(job_id="old")))
    old = lake.relative(TABLE, lake.files(TABLE))

    change = write(lake, attempt(job_id="new"))
    lake.commit(Change(table=TABLE, adds=change.adds, removes=old))

    assert lake.rows(TABLE, ["job_id"]).to_pylist() == [{"job_id": "new"}]


def test_days_have_files_of_their_own(lake):
    yesterday = DAY - timedelta(days=1)
    lake.commit(write(lake, attempt(), dated(attempt(), yesterday), attempt()))

    assert lake.days(TABLE) == [yesterday.isoformat(), DAY.isoformat()]
    assert lake.rows(TABLE, ["job_id"], DAY.isoformat()).num_rows == 2
    assert len(lake.files(TABLE, yesterday.isoformat())) == 1


def test_other_readers_see_the_same_rows(lake):
    lake.commit(write(lake, attempt(queue="a b/ü"), attempt(queue="mail")))
    files = list(map(str, lake.files(TABLE)))

    by_duckdb = duckdb.sql("select queue, event_date from read_parquet($1)", params=[files])
    by_polars = pl.scan_delta(str(lake.path / TABLE)).collect()

    assert sorted(by_duckdb.fetchall()) == [("a b/ü", DAY), ("mail", DAY)]
    assert sorted(by_polars["queue"]) == ["a b/ü", "mail"]
    assert set(by_polars["event_date"]) == {DAY}


def test_a_lake_may_have_a_space_in_its_name(tmp_path):
    lake = Lake(tmp_path / "my lake")
    lake.create_missing()
    lake.commit(write(lake, attempt()))

    assert [path.exists() for path in lake.files(TABLE)] == [True]
    assert lake.rows(TABLE, ["queue"]).num_rows == 1


def test_a_manifest_is_committed_to_every_table_once_whoever_was_killed(lake, tmp_path):
    pending = ManifestFile(tmp_path / "pending.manifest")
    changes = [
        write(lake, attempt()),
        write(lake, {"queue": "q", "event_date": DAY}, table="gold_slo"),
    ]
    pending.write(Manifest(once=ONCE, changes=changes))
    # The first table was committed when the writer was killed.
    lake.commit(changes[0], ONCE)

    settled = [pending.settle(Lake(lake.path)) is not None for _ in range(2)]

    assert settled == [True, False]
    assert (row_count(lake), row_count(lake, "gold_slo")) == (1, 1)


def test_a_draft_of_a_manifest_counts_for_nothing(lake, tmp_path):
    (tmp_path / "pending.draft").write_bytes(b"{half")

    assert ManifestFile(tmp_path / "pending.manifest").settle(lake) is None


def test_a_column_that_came_later_is_empty_in_older_rows(lake, monkeypatch):
    lake.commit(write(lake, attempt()))
    wider = Table(TABLE, (*TABLES[TABLE].columns, Column("region", "string")))
    monkeypatch.setitem(TABLES, TABLE, wider)

    newer = Lake(lake.path)
    newer.create_missing()
    newer.commit(write(newer, attempt(region="eu")))

    assert sorted(map(str, newer.rows(TABLE, ["region"]).column("region").to_pylist())) == [
        "None",
        "eu",
    ]


def test_a_table_of_a_later_version_takes_rows_of_this_one(lake, monkeypatch):
    wider = Table(TABLE, (*TABLES[TABLE].columns, Column("region", "string")))
    with monkeypatch.context() as later:
        later.setitem(TABLES, TABLE, wider)
        Lake(lake.path).create_missing()

    lake.create_missing()
    lake.commit(write(lake, attempt()))

    assert row_count(lake) == 1


def test_vacuum_deletes_what_no_table_has(lake):
    kept = write(lake, attempt())
    lake.commit(kept)
    orphan = lake.path / TABLE / write(lake, attempt()).adds[0].path

    lake.vacuum(after_hours=0)

    assert not orphan.exists()
    assert row_count(lake) == 1


def test_vacuum_spares_a_young_file(lake):
    orphan = lake.path / TABLE / write(lake, attempt()).adds[0].path

    lake.vacuum()

    assert orphan.exists()


def test_vacuum_spares_what_a_batch_has_decided_to_commit(lake):
    change = write(lake, attempt())
    pending = Checkpoint(lake.path, "history").pending
    pending.write(Manifest(once=ONCE, changes=[change]))

    lake.vacuum(after_hours=0)
    pending.settle(lake)

    assert row_count(lake) == 1
    assert lake.rows(TABLE, ["job_id"]).num_rows == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_to_is_refused_in_a_sentence(tmp_path):
    tmp_path.chmod(0o500)

    with pytest.raises(SettingsError, match="lake must be a folder to write to"):
        Lake(tmp_path / "lake").create_missing()


def test_a_file_in_the_place_of_the_folder_is_refused_in_a_sentence(tmp_path):
    (tmp_path / "lake").write_text("no folder")

    with pytest.raises(SettingsError, match="lake must be a folder to write to"):
        Lake(tmp_path / "lake").create_missing()


def test_a_second_pipeline_on_a_lake_is_refused(tmp_path):
    refused = pytest.raises(SettingsError, match="one pipeline at a time")
    with only_pipeline(Lake(tmp_path)), refused, only_pipeline(Lake(tmp_path)):
        pass

    with only_pipeline(Lake(tmp_path)):
        pass


def test_whoever_comes_after_another_leaves_the_lock_alone(tmp_path, monkeypatch):
    with only_pipeline(Lake(tmp_path)):
        pass
    locked, lock = [], fcntl.flock

    def note(file, how) -> None:
        locked.append(Path(file.name).name)
        lock(file, how)

    refused = pytest.raises(SettingsError, match="one pipeline at a time")
    with reserved(tmp_path):
        monkeypatch.setattr(fcntl, "flock", note)
        with refused, reserved(tmp_path):
            pass
        # A lock that is held for a look refuses the one who was first, once its Spark is up.
        assert locked == ["reserved"]
        with only_pipeline(Lake(tmp_path)):
            pass


def test_a_lake_that_a_program_holds_cannot_be_reserved(tmp_path):
    refused = pytest.raises(SettingsError, match="one pipeline at a time")
    with only_pipeline(Lake(tmp_path)), refused, reserved(tmp_path):
        pass

    assert not (tmp_path / "_pipeline" / "reserved").exists()
    with reserved(tmp_path):
        pass


def test_whoever_begins_anew_counts_under_another_name(tmp_path):
    first = Checkpoint(tmp_path, "history")
    offsets = Path(first.location) / "offsets"
    offsets.mkdir(parents=True)
    names = [first.app_id, first.app_id]
    (offsets / "0").write_text("{}")
    names.append(Checkpoint(tmp_path, "history").app_id)
    (offsets / "0").unlink()

    assert len(set(names)) == 1
    assert Checkpoint(tmp_path, "history").app_id not in names


def test_small_files_say_what_they_hold(lake):
    (facts,) = write(lake, attempt(queue="b"), attempt(queue="a")).adds

    assert facts.row_count == 2
    assert '"minValues": {"queue": "a"' in facts.stats
    assert '"maxValues": {"queue": "b"' in facts.stats


def test_a_row_without_a_day_is_refused_as_nothing_could_compact_it(lake):
    with pytest.raises(AssertionError, match="every row is of a day"):
        write(lake, attempt(), attempt(event_date=None))


def test_no_rows_make_no_file(lake):
    assert write_table(lake.path, TABLE, TABLES[TABLE].arrow.empty_table(), "test") == []
