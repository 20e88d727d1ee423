"""A real cluster that speculates: tasks and executors are killed in the middle, copies write too."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from support.row_storm import PARTITIONS, refuse_doubles_and_gaps, write_everywhere
from support.spark_cluster import Cluster

IS_BIG = os.environ.get("CHASQUI_TEST_BIG") == "1"
# A minute where nobody else works, ten where many do.
RUN_S_MAX = 1_200
pytestmark = [
    pytest.mark.timeout(RUN_S_MAX + 60),
    pytest.mark.skipif(not IS_BIG, reason="takes long; CHASQUI_TEST_BIG=1 runs it"),
]


@pytest.fixture
def cluster(tmp_path):
    folder = tmp_path / "cluster"
    folder.mkdir()
    # Copies are never where their task is, so each of the two must have room for all.
    cluster = Cluster(folder, workers=2, cores=PARTITIONS)
    yield cluster
    cluster.close()


def test_every_row_is_one_job_however_often_its_task_runs(cluster, queue_name, tmp_path):
    runs = tmp_path / "runs"
    runs.mkdir()

    found, copies = write_everywhere(
        "chasqui.speculative", cluster.url, queue_name, within_s=RUN_S_MAX,
        CHASQUI_TEST_RUNS=str(runs),
    )  # fmt: skip

    refuse_doubles_and_gaps(found)
    # Whether it was the storm it should be: each task had a copy, and one of the two was killed.
    begun = Counter(path.name.rpartition(".")[0] for path in runs.glob("begun *"))
    killed = {path.name.split(".")[-2] for path in runs.glob("dying *")}
    print(f"copies of each task {list(copies.values())}, runs of each {sorted(begun.values())}")
    assert [sorted(one) for one in copies.values()] == [["0", "1", "2"]] * len(found)
    assert (len(begun), len(list(runs.glob("dying *")))) == (PARTITIONS * len(found),) * 2
    assert killed == {"0", "1", "2"}
    # Of the last partition both were killed, so that it ran once more.
    assert Counter(min(3, count) for count in begun.values())[3] >= len(found)
