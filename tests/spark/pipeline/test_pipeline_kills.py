"""A driver that is killed in the middle of a batch: whoever comes after it loses and doubles nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from chasquimq.spark.lake import Lake
from support.attempts import failed

ROOT = Path(__file__).parents[3]
PROGRAM = ROOT / "tests" / "support" / "pipeline_program.py"
RETRIED, DEAD = 1, 2
KILLED = -9
MOMENTS = ("after-batch", "before-manifest", "after-commits:4", "before-forgetting")


@pytest.fixture
def run(url, queue_name, settings):
    """Runs the pipeline in a process of its own; the answer is how the process ended."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])

    def run_until(moment: str) -> int:
        return subprocess.run(
            [sys.executable, PROGRAM, url, queue_name, settings.lake, moment],
            env=os.environ | {"PYTHONPATH": path},
            timeout=200,
            check=False,
        ).returncode

    return run_until


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
