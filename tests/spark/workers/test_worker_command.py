"""`chasqui spark worker` as a command: processes of it are killed, then the run ends in its words."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from support.command import RunningCommand
from support.noted_runs import HANDLERS, add_jobs, noted, pids
from support.waiting import eventually

SOURCES = Path(__file__).parents[3] / "src"
# A session takes half a minute to start on a busy machine, and its first tasks as long.
START_S_MAX = 150.0
CONCURRENCY = 10
JOBS = 400
pytestmark = [pytest.mark.timeout(START_S_MAX * 3), pytest.mark.takes_turns]


@pytest.fixture
def running(url, queue_name, tmp_path):
    """Start `chasqui spark worker` in a folder with the handlers; it is gone after the test."""
    shutil.copy(HANDLERS / "noting_handlers.py", tmp_path)
    environ = os.environ | {"CHASQUI_REDIS_URL": url, "PYTHONPATH": str(SOURCES)}
    started: list[RunningCommand] = []

    def start(*args: str, **options: bool) -> RunningCommand:
        command = ("spark", "worker", "--queue", queue_name, "--json", *args)
        started.append(RunningCommand(command, environ, tmp_path, **options))
        return started[-1]

    yield start
    for one in started:
        one.kill()


def facts(run: RunningCommand) -> list[dict]:
    return [json.loads(text) for text in run.out.split("\n")[:-1]]


async def test_a_task_whose_process_is_killed_starts_again_and_no_job_is_lost(
    running, queue, raw, tmp_path
):
    lines = tmp_path / "lines"
    run = running(
        "--handler", "noting_handlers:note", "--tasks", "2", "--master", "local[2,4]",
        "--lease", "2s", "--concurrency", str(CONCURRENCY),
    )  # fmt: skip
    await run.until(lambda: '"alive": 2' in run.out, "two living tasks", START_S_MAX)
    added = await add_jobs(queue, JOBS, lines, work_s=0.05)
    await eventually(lambda: noted(lines, "end").total() > 50, within_s=START_S_MAX, what="jobs")

    os.kill(pids(lines)[-1], signal.SIGKILL)
    await eventually(
        lambda: noted(lines, "end").keys() == added, within_s=START_S_MAX, what="every job"
    )
    await run.until(lambda: '"starts": 3' in run.out, "a third start", START_S_MAX)
    # Spark hears Ctrl+C, too, and would cancel the tasks.
    code = await run.ended(signal.SIGINT)

    summary = facts(run)[-1]
    assert code == 130
    assert (summary["is_drained"], summary["starts"], summary["submissions"]) == (True, 3, 1)
    # Only what the dead process had in its hands began twice: running, or ended without its ack.
    ends = noted(lines, "end").total()
    assert noted(lines, "start").total() - ends <= CONCURRENCY
    assert ends - JOBS <= CONCURRENCY
    assert set(noted(lines, "start").values()) <= {1, 2}
    assert await raw.pending() == []


async def test_a_signal_to_all_processes_ends_with_the_last_line_though_the_jvm_is_dead(running):
    run = running(
        "--handler", "noting_handlers:note", "--tasks", "1", "--master", "local[1]",
        has_own_group=True,
    )  # fmt: skip
    await run.until(lambda: '"alive": 1' in run.out, "a living task", START_S_MAX)

    os.killpg(run.process.pid, signal.SIGTERM)
    code = await run.ended()

    assert "Traceback" not in run.err
    assert "Error" not in run.err
    assert code == (0 if facts(run)[-1]["is_drained"] else 1)
