"""A real cluster that speculates: tasks and executors are killed in the middle, copies write too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from chasquimq.wire.codec import decode_envelope, decode_payload
from support.feed import Feed
from support.servers import server_kinds
from support.spark_cluster import Cluster

IS_BIG = os.environ.get("CHASQUI_TEST_BIG") == "1"
PROGRAM = Path(__file__).parent / "speculative_program.py"
SOURCES = Path(__file__).parents[3] / "src"
ROWS = 6_000
PARTITIONS = 3
RUN_S_MAX = 600
pytestmark = [
    pytest.mark.timeout(RUN_S_MAX + 60),
    pytest.mark.skipif(not IS_BIG, reason="takes long; CHASQUI_TEST_BIG=1 runs it"),
]


@pytest.fixture
def cluster(tmp_path):
    folder = tmp_path / "cluster"
    folder.mkdir()
    cluster = Cluster(folder, workers=2)
    yield cluster
    cluster.close()


def test_every_row_is_one_job_however_often_its_task_runs(cluster, queue_name, tmp_path):
    sessions = {kind.label: kind.session().start() for kind in server_kinds()}
    runs = tmp_path / "runs"
    runs.mkdir()
    try:
        copies = run(cluster, runs, [f"{one.url}|{queue_name}" for one in sessions.values()])
        found = {
            (label, ids): jobs(session.url, f"{queue_name}-{ids}")
            for label, session in sessions.items()
            for ids in ("content", "own")
        }
    finally:
        for session in sessions.values():
            session.stop()

    begun = Counter(path.name.rpartition(".")[0] for path in runs.iterdir())
    print(f"speculative copies {list(copies.values())}, runs of each task {list(begun.values())}")
    for (_, ids), seen in found.items():
        assert len(seen) == len({job_id for job_id, _ in seen}) == ROWS
        assert Counter(n for _, n in seen) == dict.fromkeys(range(ROWS // 2), 2)
        if ids == "own":
            assert {job_id for job_id, _ in seen} == {f"o-{at}" for at in range(ROWS)}
    # Whether it was the storm it should be: each task was killed once, and some had a copy.
    assert len(begun) == PARTITIONS * len(found)
    assert min(begun.values()) >= 2
    assert min(copies.values()) >= 1


def run(cluster: Cluster, runs: Path, targets: list[str]) -> dict[str, int]:
    paths = os.pathsep.join([str(SOURCES), str(PROGRAM.parent)])
    done = subprocess.run(
        [sys.executable, str(PROGRAM), cluster.url, *targets],
        env=os.environ | {"PYTHONPATH": paths, "CHASQUI_TEST_RUNS": str(runs)},
        capture_output=True, text=True, timeout=RUN_S_MAX, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2_000:]
    return json.loads(done.stdout.splitlines()[-1])


def jobs(url: str, queue: str) -> list[tuple[str, int]]:
    feed = Feed(url, queue)
    entries = feed.call("XRANGE", feed.keys.stream, "-", "+")
    feed.close()
    read = [decode_envelope(fields[1]) for _, fields in entries]
    return [(job.id, decode_payload(job.payload)["n"]) for job in read]
