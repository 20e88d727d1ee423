"""Few files of many, one row of those that merge, and nothing lost on the way."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

from chasquimq.errors import SettingsError
from chasquimq.spark.lake.checkpoints import only_pipeline
from chasquimq.spark.lake.compaction import compact
from chasquimq.spark.lake.files import write_table
from chasquimq.spark.lake.lake import Change, Lake, Once
from chasquimq.spark.lake.maintenance import tidy
from chasquimq.spark.lake.reading import JOBS_MOVE
from chasquimq.spark.lake.sketches import quantiles
from chasquimq.spark.query.queries import Answers
from support.made_lake import sketch
from support.rows import DAY, NOON, after, batch

YESTERDAY = DAY - timedelta(days=1)


@pytest.fixture
def lake(tmp_path) -> Lake:
    lake = Lake(tmp_path / "lake")
    lake.create_missing()
    return lake


def append(lake: Lake, table: str, *rows: dict) -> None:
    """Each row in a file and a commit of its own."""
    for row in rows:
        files = write_table(lake.path, table, batch(table, {"event_date": DAY} | row), "test")
        lake.commit(Change(table=table, adds=files))


def minute(**figures) -> dict:
    return {"queue": "mail", "name": "send", "window_start": NOON, "started": 1} | figures


def part(job_id: str, **figures) -> dict:
    told = {"queue": "mail", "job_id": job_id, "attempts": 1, "failures": 0, "run_us": 10}
    return told | figures


def jobs(lake: Lake) -> list[dict]:
    with Answers(lake.path) as answers:
        return answers.sql("select * from silver_jobs order by job_id").dicts()


def test_parts_of_a_key_become_one_row(lake):
    append(lake, "gold_minute", *(minute(run_kll=sketch(at)) for at in range(6)))

    compact(lake)

    (row,) = lake.rows("gold_minute", ["started", "run_kll", "event_date"]).to_pylist()
    assert (row["started"], row["event_date"]) == (6, DAY)
    assert quantiles([row["run_kll"]], [0.0, 1.0]) == [0.0, 5.0]
    assert len(lake.files("gold_minute")) == 1


def test_figures_that_follow_from_others_are_worked_out_anew(lake):
    told = {"queue": "mail", "name": "send", "window_start": NOON, "target_ms": 5}
    append(
        lake, "gold_slo",
        *({**told, "within": 9, "breached": 1, "allowed_share": 0.1, "burn_rate": 7.0} for _ in range(5)),
    )  # fmt: skip

    compact(lake)

    (row,) = lake.rows("gold_slo", ["within", "breached", "burn_rate"]).to_pylist()
    assert row == {"within": 45, "breached": 5, "burn_rate": pytest.approx(1.0)}


def test_days_stay_apart(lake):
    append(lake, "gold_minute", *(minute() for _ in range(5)))
    append(lake, "gold_minute", *(minute(event_date=YESTERDAY) for _ in range(5)))

    compact(lake)

    rows = lake.rows("gold_minute", ["started", "event_date"]).to_pylist()
    assert sorted((row["event_date"], row["started"]) for row in rows) == [(YESTERDAY, 5), (DAY, 5)]


def test_a_few_files_are_let_be(lake):
    append(lake, "gold_minute", minute(), minute())

    assert compact(lake) == []
    assert len(lake.files("gold_minute")) == 2


def test_many_small_files_become_one_with_the_same_rows(lake):
    samples = [{"queue": "mail", "sampled_at": after(at), "ready": at} for at in range(20)]
    append(lake, "gold_backlog", *samples)

    (done,) = compact(lake)

    assert (done.table, done.files_before, done.files_after) == ("gold_backlog", 20, 1)
    rows = lake.rows("gold_backlog", ["ready", "event_date"]).to_pylist()
    assert sorted(row["ready"] for row in rows) == list(range(20))
    assert {row["event_date"] for row in rows} == {DAY}


def test_parts_of_jobs_move_to_the_jobs(lake):
    append(lake, "silver_jobs", part("whole", status="completed", updated_at=NOON))
    append(
        lake, "silver_jobs_parts",
        part("a", status="retrying", failures=1, updated_at=NOON, reason="no"),
        part("a", status="completed", updated_at=after(5), ended_at=after(5)),
        part("b", status="retrying", updated_at=NOON),
    )  # fmt: skip
    before = jobs(lake)

    compact(lake)

    assert jobs(lake) == before
    assert lake.files("silver_jobs_parts") == []
    assert lake.table("silver_jobs").count() == 3
    (job,) = [row for row in before if row["job_id"] == "a"]
    assert (job["attempts"], job["failures"], job["status"], job["reason"]) == (
        2, 1, "completed", "no",
    )  # fmt: skip


def test_a_job_whose_parts_moved_goes_on_with_new_parts(lake):
    append(lake, "silver_jobs_parts", part("a", status="retrying", updated_at=NOON))
    compact(lake)
    append(lake, "silver_jobs_parts", part("a", status="dead", updated_at=after(9)))

    (job,) = jobs(lake)

    assert (job["attempts"], job["status"]) == (2, "dead")


def test_a_move_that_was_killed_between_the_tables_is_ended_by_the_next(lake, monkeypatch):
    append(lake, "silver_jobs_parts", part("a", status="dead", updated_at=NOON))
    commit = Lake.commit

    def killed(self, change, once=None):
        commit(self, change, once)
        raise KeyboardInterrupt

    monkeypatch.setattr(Lake, "commit", killed)
    with pytest.raises(KeyboardInterrupt):
        compact(lake)
    monkeypatch.setattr(Lake, "commit", commit)
    halfway_jobs = jobs(lake)
    compact(Lake(lake.path))

    assert halfway_jobs == jobs(lake)
    assert [job["attempts"] for job in jobs(lake)] == [1]
    assert lake.files("silver_jobs_parts") == []


def test_parts_move_though_the_clock_stepped_back_since_the_last_move(lake):
    ahead = Once(JOBS_MOVE, time.time_ns() // 1_000 + 3_600_000_000)
    for table in ("silver_jobs", "silver_jobs_parts"):
        lake.commit(Change(table=table), ahead)
    append(lake, "silver_jobs_parts", part("a", status="dead", updated_at=NOON))

    compact(lake)

    assert lake.files("silver_jobs_parts") == []
    assert [job["attempts"] for job in jobs(lake)] == [1]


def test_a_lake_that_a_pipeline_holds_is_not_compacted_by_another(lake):
    with only_pipeline(lake), pytest.raises(SettingsError, match="one pipeline at a time"):
        tidy(lake)


def test_an_empty_lake_has_nothing_to_compact(lake):
    assert tidy(lake) == ([], [])
