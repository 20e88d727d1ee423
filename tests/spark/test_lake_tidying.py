"""A lake that is written to all the time stays small: who tidies it, when, and what is deleted."""

from __future__ import annotations

import os
import time

import pytest

from chasquimq.settings import ConnectionSettings
from chasquimq.spark.lake.files import write_table
from chasquimq.spark.lake.lake import Change, Lake
from chasquimq.spark.lake.maintenance import Tidying, tidy
from chasquimq.spark.pipeline.context import Workplace
from chasquimq.spark.pipeline.settings import PipelineSettings
from support.rows import DAY, after, batch

HOUR_S = 3_600
BACKLOG = "gold_backlog"


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def lake(tmp_path) -> Lake:
    lake = Lake(tmp_path / "lake")
    lake.create_missing()
    return lake


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def tidying(lake, clock) -> Tidying:
    return Tidying(lake, commits_max=5, clock_s=clock)


def append(lake: Lake, count: int) -> None:
    for at in range(count):
        row = {"queue": "mail", "sampled_at": after(at), "ready": at, "event_date": DAY}
        files = write_table(lake.path, BACKLOG, batch(BACKLOG, row), "test")
        lake.commit(Change(table=BACKLOG, adds=files))


def orphan(lake: Lake, age_s: float) -> bool:
    """Writes a file that no table ever had; the answer can be asked whether it is still there."""
    row = {"queue": "mail", "event_date": DAY}
    (facts,) = write_table(lake.path, BACKLOG, batch(BACKLOG, row), "test")
    path = lake.path / BACKLOG / facts.path
    os.utime(path, (time.time() - age_s,) * 2)
    return path


def test_it_is_due_after_so_many_commits(tidying):
    due = []
    for _ in range(5):
        due.append(tidying.is_due)
        tidying.note_commit()

    assert due == [False] * 5
    assert tidying.is_due


def test_a_few_commits_are_due_after_a_while(tidying, clock):
    tidying.note_commit()
    clock.now_s += 599
    early = tidying.is_due
    clock.now_s += 2

    assert not early
    assert tidying.is_due


def test_nothing_is_due_where_nothing_was_committed(tidying, clock):
    clock.now_s += 100 * HOUR_S

    assert not tidying.is_due


def test_whoever_has_tidied_begins_to_count_anew(tidying, clock):
    for _ in range(5):
        tidying.note_commit()
    clock.now_s += HOUR_S

    tidying.tidy()

    assert not tidying.is_due


def test_a_pipeline_that_runs_deletes_what_was_replaced_a_day_ago(lake, tidying):
    old, young = orphan(lake, 25 * HOUR_S), orphan(lake, 23 * HOUR_S)

    tidying.tidy()

    assert (old.exists(), young.exists()) == (False, True)


def test_files_are_looked_for_once_an_hour_whoever_looks(lake, tidying):
    tidying.tidy()
    old = orphan(lake, 25 * HOUR_S)

    Tidying(lake, commits_max=5).tidy()
    spared = old.exists()
    marker = lake.path / "_pipeline" / "vacuumed"
    os.utime(marker, (time.time() - HOUR_S - 1,) * 2)
    Tidying(lake, commits_max=5).tidy()

    assert spared
    assert not old.exists()


def test_a_clock_that_stepped_back_does_not_put_off_the_look(lake, tidying):
    tidying.tidy()
    marker = lake.path / "_pipeline" / "vacuumed"
    os.utime(marker, (time.time() + 100 * HOUR_S,) * 2)
    old = orphan(lake, 25 * HOUR_S)

    tidying.tidy()

    assert not old.exists()


def test_whoever_asks_for_it_gets_it_at_once(lake, tidying):
    tidying.tidy()
    old = orphan(lake, 25 * HOUR_S)

    done = tidy(lake)

    assert done.deleted == [str(old.relative_to(lake.path))]


def test_a_pipeline_that_only_takes_samples_compacts_them(url, queue_name, lake):
    settings = PipelineSettings(
        lake=lake.path, connection=ConnectionSettings(url=url), compact_every=10
    )
    with Workplace(None, lake, settings, None) as work:
        for _ in range(10):
            work.sample([queue_name])
            work.flush()
            work.tidy_if_due()

    assert lake.table(BACKLOG).count() == 10
    assert len(lake.files(BACKLOG)) == 1
