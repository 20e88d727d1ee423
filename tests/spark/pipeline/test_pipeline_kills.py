"""A driver that is killed in the middle of a batch: whoever comes after it loses and doubles nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from chasquimq.spark.lake.lake import Lake
from chasquimq.spark.lake.maintenance import tidy
from support.attempts import failed
from support.waiting import patience

ROOT = Path(__file__).parents[3]
PROGRAM = ROOT / "tests" / "support" / "pipeline_program.py"
RETRIED, DEAD = 1, 2
KILLED = -9
MOMENTS = ("after-batch", "before-manifest", "after-commits:4", "before-forgetting")
# Who dies is the driver, and what it leaves lies in the lake.
pytestmark = pytest.mark.takes_turns


@pytest.fixture
def run(url, queue_name, settings):
    """Runs the pipeline in a process of its own; the answer is how the process ended."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])

    def run_until(moment: str) -> int:
        return subprocess.run(
            [sys.executable, PROGRAM, url, queue_name, settings.lake, moment],
            env=os.environ | {"PYTHONPATH": path},
            timeout=200 * patience(),
            check=False,
        ).returncode

    return run_until


@pytest.fixture
def dying(monkeypatch):
    """Does something that dies when so many changes are committed."""
    commit = Lake.commit

    def dies_after(count: int, act) -> None:
        made = []

        def committed(self, change, once=None):
            if len(made) == count:
                raise RuntimeError("killed")
            made.append(change.table)
            return commit(self, change, once)

        monkeypatch.setattr(Lake, "commit", committed)
        with pytest.raises(RuntimeError, match="killed"):
            act()
        monkeypatch.setattr(Lake, "commit", commit)

    return dies_after


@pytest.fixture
def read(feed, pipeline, counts):
    """Reads a few attempts; answers what every table must say about them from then on."""

    def once_read() -> dict[str, int]:
        feed.rows([("a", 1, RETRIED, failed()), ("a", 2, 0, None), ("b", 1, 0, None)])
        pipeline().once()
        return counts()

    return once_read


def test_a_lost_checkpoint_and_a_batch_under_way_double_nothing(
    feed, pipeline, settings, dying, counts
):
    feed.attempts(10)
    # The first change of a batch is that of bronze.
    dying(1, pipeline().once)
    shutil.rmtree(settings.lake / "_pipeline" / "history" / "checkpoint")

    pipeline().once()

    assert (counts()["bronze_attempts"], counts()["completed"]) == (10, 10)


def test_a_day_is_not_made_again_of_half_a_batch(feed, pipeline, dying, counts):
    feed.attempts(10)
    dying(1, pipeline().once)

    pipeline().backfill(datetime.now(UTC).date())

    assert (counts()["bronze_attempts"], counts()["silver_attempts"]) == (10, 10)
    assert counts()["completed"] == 10


def test_a_day_that_was_half_made_again_is_not_doubled_by_compaction(
    pipeline, settings, dying, read, counts
):
    read()
    before = read()
    dying(3, lambda: pipeline().backfill(datetime.now(UTC).date()))

    tidy(Lake(settings.lake))
    pipeline().once()

    assert counts() == before


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_in_four_moments_of_a_batch_every_table_is_exact(feed, run, settings, ask, counts):
    feed.attempts(900)
    feed.attempts(1_000)
    feed.rows([("a", 1, RETRIED, failed()), ("b", 1, RETRIED, failed()), ("c", 1, 0, None)])
    feed.rows([("a", 2, 0, None), ("b", 2, DEAD, failed())])

    ends = [run(moment) for moment in MOMENTS]
    last = run("never")

    assert ends == [KILLED] * 4
    assert last == 0
    assert counts() == {
        "bronze_attempts": 1_905, "silver_attempts": 1_905, "silver_jobs": 1_903, "completed": 1_902,
        "retried": 2, "dead": 1,
    }  # fmt: skip
    assert ask("select sum(entries)::int e, max(last_seq) last from bronze_runs") == [
        {"e": 4, "last": 3}
    ]
    assert ask("select sum(failed)::int f, sum(dead)::int d from gold_failures") == [
        {"f": 3, "d": 1}
    ]
    assert ask("select sum(runs)::int n from gold_retries") == [{"n": 1_905}]
    orphans = _on_disk(settings.lake) - _committed(settings.lake)
    assert orphans
    Lake(settings.lake).vacuum(after_hours=0)
    assert _on_disk(settings.lake) == _committed(settings.lake)


def _on_disk(lake: Path) -> set[Path]:
    return set((lake / "bronze_attempts").rglob("*.parquet"))


def _committed(lake: Path) -> set[Path]:
    return set(Lake(lake).files("bronze_attempts"))
