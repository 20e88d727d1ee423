"""Every task is killed once in the middle, then runs beside a copy, with rows in another order."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from chasquimq.wire.codec import decode_envelope, decode_payload
from support.feed import Feed
from support.servers import server_kinds

PROGRAM = Path(__file__).parent / "killed_tasks_program.py"
SOURCES = Path(__file__).parents[3] / "src"
ROWS = 6_000
# A session of its own takes half a minute on a busy machine, and so do its first tasks.
RUN_S_MAX = 300


@pytest.mark.timeout(RUN_S_MAX + 30)
def test_every_row_is_one_job_on_every_server(queue_name):
    sessions = {kind.label: kind.session().start() for kind in server_kinds()}
    try:
        run([f"{session.url}|{queue_name}" for session in sessions.values()])
        found = {
            (label, ids): jobs(session.url, f"{queue_name}-{ids}")
            for label, session in sessions.items()
            for ids in ("content", "own")
        }
    finally:
        for session in sessions.values():
            session.stop()

    for (_, ids), seen in found.items():
        assert len(seen) == len({job_id for job_id, _ in seen}) == ROWS
        assert Counter(n for _, n in seen) == dict.fromkeys(range(ROWS // 2), 2)
        if ids == "own":
            assert {job_id for job_id, _ in seen} == {f"o-{at}" for at in range(ROWS)}


def run(targets: list[str]) -> None:
    # Spark's own Python processes must find the program's source, too.
    paths = os.pathsep.join([str(SOURCES), str(PROGRAM.parent)])
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *targets], env=os.environ | {"PYTHONPATH": paths},
        capture_output=True, text=True, timeout=RUN_S_MAX, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2_000:]


def jobs(url: str, queue: str) -> list[tuple[str, int]]:
    feed = Feed(url, queue)
    entries = feed.call("XRANGE", feed.keys.stream, "-", "+")
    feed.close()
    read = [decode_envelope(fields[1]) for _, fields in entries]
    return [(job.id, decode_payload(job.payload)["n"]) for job in read]
