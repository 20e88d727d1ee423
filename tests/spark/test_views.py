"""Lakes in odd places and of other versions are read as they are, or refused in a sentence."""

import os
from datetime import date

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from chasquimq.errors import SettingsError
from chasquimq.spark.lake.compaction import compact
from chasquimq.spark.lake.lake import Lake
from chasquimq.spark.query.queries import Answers
from support.made_lake import append, minutes


def rows(lake, question):
    with Answers(lake) as answers:
        return answers.sql(question).rows


def append_of_old(lake, count):
    """Files of a version that knew two columns of a table with keys."""
    for _ in range(count):
        old = pa.table(
            {
                "queue": ["q"],
                "name": ["n"],
                "window_start": pa.array([minutes(0)], pa.timestamp("us", tz="UTC")),
                "completed": pa.array([2], pa.int64()),
                "event_date": pa.array([date(2026, 11, 1)]),
            }
        )
        write_deltalake(str(lake / "gold_minute"), old, mode="append", partition_by=["event_date"])


def test_a_column_that_no_file_has_yet_is_null(tmp_path):
    append_of_old(tmp_path, 1)
    Lake(tmp_path).create_missing()

    assert rows(tmp_path, "select completed, dead from gold_minute") == [(2, None)]


def test_files_of_an_older_version_are_compacted_into_one_of_this(tmp_path):
    append_of_old(tmp_path, 5)
    lake = Lake(tmp_path)
    lake.create_missing()

    compact(lake)

    assert len(lake.files("gold_minute")) == 1
    assert rows(tmp_path, "select completed, dead from gold_minute") == [(10, None)]


def test_a_lake_whose_name_is_a_pattern_is_compacted_without_its_neighbours(tmp_path):
    for name in ("a*", "ab"):
        for _ in range(5):
            append(
                tmp_path / name,
                "gold_minute",
                {"queue": "q", "name": "n", "window_start": minutes(0), "completed": 1},
            )

    compact(Lake(tmp_path / "a*"))

    assert rows(tmp_path / "a*", "select completed from gold_minute") == [(5,)]


def test_a_lake_may_be_named_from_another_folder_or_through_a_link(tmp_path, monkeypatch):
    for at in range(9):
        append(tmp_path / "lake", "bronze_gaps", {"queue": "q", "lost": at})
    (tmp_path / "link").symlink_to(tmp_path / "lake")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    for path in ("../lake", tmp_path / "link"):
        lake = Lake(path)
        assert lake.relative("bronze_gaps", lake.files("bronze_gaps"))


@pytest.mark.parametrize("name", ["a%41b", "queue=x"])
def test_a_path_that_readers_would_misread_is_refused(tmp_path, name):
    with pytest.raises(SettingsError, match="without %XX and without ="):
        Lake(tmp_path / name)

    (tmp_path / name / "bronze_gaps" / "_delta_log").mkdir(parents=True)
    with pytest.raises(SettingsError, match="without %XX and without ="):
        Answers(tmp_path / name)


def test_a_torn_log_is_told_in_one_line(tmp_path):
    append(tmp_path, "bronze_gaps", {"queue": "q"})
    (log,) = (tmp_path / "bronze_gaps" / "_delta_log").glob("*.json")
    os.truncate(log, log.stat().st_size // 2)

    with pytest.raises(SettingsError, match="files are whole") as refused:
        rows(tmp_path, "from bronze_gaps")
    assert "\n" not in str(refused.value)


def test_a_file_that_is_gone_is_told_in_one_line(tmp_path):
    append(tmp_path, "bronze_gaps", {"queue": "q"})
    for file in tmp_path.glob("bronze_gaps/*/*.parquet"):
        file.unlink()

    with (
        Answers(tmp_path) as answers,
        pytest.raises(SettingsError, match="files are whole") as refused,
    ):
        answers.ask("select * from bronze_gaps")
    assert "\n" not in str(refused.value)
    assert DeltaTable(str(tmp_path / "bronze_gaps")).version() == 0
