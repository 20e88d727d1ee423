"""What workers on Spark say of their pace: of the time since the last line, and in the end of all."""

from __future__ import annotations

import json

import pytest

from chasquimq.cli.spark.worker import LINE_EVERY_S, ProgressReporter, report_summary
from chasquimq.spark.workers.run import RunSummary
from chasquimq.spark.workers.tally import Progress


def progress(seconds: float, completed: int, *, alive: int = 2) -> Progress:
    return Progress(
        alive=alive, tasks=2, starts=2, completed=completed, failed=0, retried=0, buried=0,
        handed_back=0, leases_lost=0, cpu_s=0.0, running=8, seconds=seconds,
    )  # fmt: skip


@pytest.fixture
def lines(capsys):
    """The lines of a run whose progress was looked at so."""

    def tell(*looks: Progress) -> list[dict]:
        reporter = ProgressReporter(lambda _text: None, as_json=True)
        for look in looks:
            reporter.note(look)
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return tell


def test_a_line_tells_the_pace_since_the_last_one(lines):
    # Jobs of five seconds end eight at a time; between two looks none or all of them do.
    told = lines(
        progress(0.5, 0), progress(5.0, 0), progress(5.5, 8), progress(10.0, 8),
        progress(10.5, 16), progress(11.0, 16), progress(20.5, 32),
    )  # fmt: skip

    assert [(one["seconds"], one["jobs_per_s"]) for one in told] == [
        (0.5, 0.0), (10.5, 1.6), (20.5, 1.6),
    ]  # fmt: skip


def test_a_line_that_a_task_caused_counts_as_the_last_one(lines):
    told = lines(
        progress(0.5, 0), progress(4.5, 8, alive=1), progress(4.5 + LINE_EVERY_S, 28, alive=1)
    )

    assert [one["jobs_per_s"] for one in told] == [0.0, 2.0, 2.0]


def test_a_moving_line_tells_the_pace_of_the_last_seconds():
    said: list[str] = []
    reporter = ProgressReporter(said.append, as_json=False)
    for at in range(1, 61):
        reporter.note(progress(at / 2, at // 10 * 8))

    assert {"1.6 jobs/s" in text for text in said[-20:]} == {True}


def test_the_end_tells_the_pace_of_the_whole_run(capsys):
    done = RunSummary(run="r", submissions=1, is_drained=True, progress=progress(20.0, 32))

    report_summary(done, "orders", as_json=False)

    assert "32 completed, 0 retried, 0 dead in 20.0 s (1.6 jobs/s)" in capsys.readouterr().out
