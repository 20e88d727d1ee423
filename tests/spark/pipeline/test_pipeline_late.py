"""A Python process of Spark that starts too late: the query begins again, and nothing is doubled."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from chasquimq.errors import ProcessLate
from chasquimq.spark.failures import LATE_MAX, Lateness, is_late_process
from support.waiting import eventually

IS_BIG = os.environ.get("CHASQUI_TEST_BIG") == "1"
# Spark waits ten seconds for each that does not come.
TIMEOUT_S = 240
RUN_S_MAX = 120.0
big = pytest.mark.skipif(not IS_BIG, reason="takes long; CHASQUI_TEST_BIG=1 runs it")
pytestmark = pytest.mark.timeout(TIMEOUT_S)


@pytest.fixture
def late(spark, tmp_path, monkeypatch):
    """Let so many of the processes that plan a stream come too late."""
    marks, python = tmp_path / "marks", tmp_path / "python"
    marks.mkdir()

    def begin(count: int) -> None:
        # Who finds a mark takes it, and is never heard of again.
        for number in range(count):
            (marks / str(number)).touch()
        python.write_text(
            "#!/bin/sh\n"
            'case "$*" in *python_streaming_source_runner*)\n'
            f'  for mark in {marks}/*; do rm "$mark" 2>/dev/null && exit 1; done;;\n'
            "esac\n"
            f'exec {sys.executable} "$@"\n'
        )
        python.chmod(0o700)
        monkeypatch.setattr(spark.sparkContext, "pythonExec", str(python))

    begin.left = lambda: len(list(marks.iterdir()))
    return begin


def test_what_spark_says_of_a_late_process_is_known():
    told = "[STREAM_FAILED] Query [id = 1] terminated with exception: Python worker failed to connect back."

    assert is_late_process(RuntimeError(told))
    assert not is_late_process(RuntimeError("Python worker exited unexpectedly (crashed)"))


def test_processes_that_are_late_in_a_row_are_borne_only_so_often():
    lateness, late = Lateness(), ProcessLate("late")
    for _ in range(LATE_MAX - 1):
        lateness.bear(late)

    with pytest.raises(ProcessLate):
        lateness.bear(late)


def test_one_that_came_in_time_begins_a_new_row():
    lateness, late = Lateness(), ProcessLate("late")
    for _ in range(LATE_MAX * 2):
        lateness.bear(late)
        lateness.forget()

    assert lateness.count == 0


@big
def test_a_read_with_a_late_process_begins_again(feed, pipeline, counts, late):
    feed.attempts(30, 20)
    late(1)

    run = pipeline().once()

    assert late.left() == 0
    assert (run.rows, run.lost) == (50, 0)
    assert counts()["bronze_attempts"] == 50


@big
async def test_a_pipeline_with_a_late_process_begins_again(feed, pipeline, counts, late):
    feed.attempts(30, 20)
    late(1)
    stop, rows, done = threading.Event(), [], []
    running = threading.Thread(
        target=lambda: done.append(pipeline().run(stop, lambda batch: rows.append(batch.rows)))
    )
    running.start()
    try:
        await eventually(lambda: sum(rows) == 50, within_s=RUN_S_MAX, what="all rows")
    finally:
        stop.set()
        running.join(RUN_S_MAX)

    assert late.left() == 0
    assert [run.lost for run in done] == [0]
    assert counts()["bronze_attempts"] == 50


@big
@pytest.mark.parametrize("way", ["once", "run"])
def test_processes_that_never_come_are_told_of(feed, pipeline, late, way):
    feed.attempts(5)
    late(LATE_MAX + 1)
    begin = {"once": lambda: pipeline().once(), "run": lambda: pipeline().run(threading.Event())}

    with pytest.raises(ProcessLate, match="did not start within Spark's ten seconds"):
        begin[way]()

    # Neither one more nor one less was waited for.
    assert late.left() == 1
