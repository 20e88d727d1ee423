"""Workers in tasks of Spark: every job once, a clean end, and a flag that stops only its own run."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from contextlib import asynccontextmanager

import pytest

from chasquimq.errors import NotSupportedError
from chasquimq.spark.workers.board import Board, stop_runs
from chasquimq.spark.workers.run import Stop, WorkerRun
from chasquimq.spark.workers.settings import RunSettings
from support.noted_runs import HANDLERS, add_jobs, connection, host, noted, pids
from support.waiting import eventually

# The first job of a session starts its Python processes, which takes long on a busy machine.
WAIT_S_MAX = 120.0
pytestmark = pytest.mark.takes_turns


@asynccontextmanager
async def running(spark, settings: RunSettings, stop: Stop | None = None):
    """A run beside the test; its summary is the result of the task."""
    stop, seen = stop or Stop(), []
    run = WorkerRun(spark.sparkContext, settings, stop, seen.append)
    going = asyncio.create_task(asyncio.to_thread(run.run))
    try:
        yield going, seen
    finally:
        stop.set()
        await going
        run.close()


async def test_jobs_run_once_in_all_tasks_and_nothing_is_left_after_a_stop(
    spark, url, queue, queue_name, raw, tmp_path
):
    settings = RunSettings(host=host(url, queue_name, options={"concurrency": 20}), tasks=2)

    async with running(spark, settings) as (going, seen):
        await eventually(
            lambda: seen and seen[-1].alive == 2, within_s=WAIT_S_MAX, what="two living tasks"
        )
        added = await add_jobs(queue, 500, tmp_path / "lines", work_s=0.01)
        await eventually(
            lambda: noted(tmp_path / "lines", "end").total() >= 500, within_s=WAIT_S_MAX,
            what="500 jobs",
        )  # fmt: skip
        stopped = await asyncio.to_thread(stop_runs, queue_name, connection(url, queue_name))
        summary = await asyncio.wait_for(going, WAIT_S_MAX)

    assert stopped == [settings.host.run]
    assert noted(tmp_path / "lines", "end") == dict.fromkeys(added, 1)
    assert (summary.is_drained, summary.submissions, summary.progress.completed) == (True, 1, 500)
    assert summary.progress.starts == 2
    assert len(pids(tmp_path / "lines")) == 2
    assert (await raw.pending(), await raw.consumers()) == ([], [])
    assert await raw("KEYS", f"*{queue_name}*token:spark:*") == []


async def test_a_job_of_spark_that_failed_is_submitted_again(
    spark, url, queue, queue_name, raw, tmp_path
):
    lines = tmp_path / "lines"
    added = await add_jobs(queue, 100, lines, work_s=0.05)
    options = {"concurrency": 5, "claim_min_idle_ms": 2_000}
    settings = RunSettings(host=host(url, queue_name, options=options), tasks=1)
    stop = Stop()

    async with running(spark, settings, stop) as (going, _):
        await eventually(lambda: noted(lines, "end"), within_s=WAIT_S_MAX, what="a job")
        # This session has no patience: one dead task is the end of its job.
        os.kill(pids(lines)[-1], signal.SIGKILL)
        await eventually(
            lambda: noted(lines, "end").keys() == added, within_s=WAIT_S_MAX, what="every job"
        )
        stop.set()
        summary = await asyncio.wait_for(going, WAIT_S_MAX)

    assert (summary.submissions, summary.progress.starts, summary.is_drained) == (2, 2, True)
    assert noted(lines, "start").total() - noted(lines, "end").total() <= options["concurrency"]
    # The dead one could not leave by itself.
    assert (await raw.pending(), await raw.consumers()) == ([], [])


async def test_jobs_that_outlast_the_deadline_are_given_back_and_everybody_is_gone(
    spark, url, queue, queue_name, raw, tmp_path
):
    lines = tmp_path / "lines"
    await add_jobs(queue, 3, lines, work_s=600)
    ours = host(url, queue_name, options={"shutdown_deadline_ms": 500})
    stop = Stop()

    async with running(spark, RunSettings(host=ours, tasks=2, stop_deadline_ms=500), stop) as (
        going,
        _,
    ):
        await eventually(
            lambda: noted(lines, "start").total() == 3, within_s=WAIT_S_MAX, what="three starts"
        )
        stop.set()
        summary = await asyncio.wait_for(going, WAIT_S_MAX)

    # Drained: no task had to be cancelled, which happens a grace after the deadline.
    assert (summary.is_drained, summary.progress.completed) == (True, 0)
    assert len(await raw.entries(raw.keys.stream)) == 3
    assert await raw.consumers() in ([], ["returned"])


async def test_why_a_task_fails_is_told_although_spark_starts_it_again(
    spark, url, queue_name, caplog
):
    settings = RunSettings(host=host(url, queue_name, "noting_handlers:missing"), tasks=1)

    async with running(spark, settings):
        await eventually(lambda: told(caplog), within_s=WAIT_S_MAX, what="a reason")

    assert "has no attribute 'missing'" in told(caplog)[0]


def told(caplog) -> list[str]:
    return [
        one.chasqui_reason for one in caplog.records if one.getMessage().startswith("a task failed")
    ]


async def test_a_second_signal_cancels_what_still_runs(
    spark, url, queue, queue_name, raw, tmp_path
):
    lines = tmp_path / "lines"
    await add_jobs(queue, 3, lines, work_s=600)
    stop = Stop()

    async with running(spark, RunSettings(host=host(url, queue_name), tasks=1), stop) as (going, _):
        await eventually(
            lambda: noted(lines, "start").total() == 3, within_s=WAIT_S_MAX, what="three starts"
        )
        stop.is_urgent = True
        stop.set()
        summary = await asyncio.wait_for(going, WAIT_S_MAX)

    assert not summary.is_drained
    assert len(await raw.entries(raw.keys.stream)) == 3


async def test_the_flag_of_an_earlier_run_stops_nobody(spark, url, queue, queue_name, tmp_path):
    earlier = Board(queue_name, connection(url, queue_name), "earlier")
    earlier.open()
    earlier.stop()
    earlier.close()
    added = await add_jobs(queue, 20, tmp_path / "lines")
    settings = RunSettings(host=host(url, queue_name), tasks=1)

    async with running(spark, settings) as (going, _):
        await eventually(
            lambda: noted(tmp_path / "lines", "end").total() >= 20, within_s=WAIT_S_MAX,
            what="20 jobs",
        )  # fmt: skip
        was_done = going.done()

    assert not was_done
    assert noted(tmp_path / "lines", "end") == dict.fromkeys(added, 1)


async def test_a_worker_of_batches_is_hosted_as_it_is(spark, url, queue, queue_name, tmp_path):
    module = f"batches_{queue_name[2:]}"
    made = f"Worker({queue_name!r}, note_many, redis_url={url!r}, batch=(50, 20))"
    text = f"from chasquimq import Worker\nfrom noting_handlers import note_many\nworker = {made}\n"
    await asyncio.to_thread((tmp_path / f"{module}.py").write_text, text)
    await asyncio.to_thread(shutil.copy, HANDLERS / "noting_handlers.py", tmp_path)
    added = await add_jobs(queue, 200, tmp_path / "lines")
    ours = host(url, queue_name, f"{module}:worker", folder=str(tmp_path))

    async with running(spark, RunSettings(host=ours, tasks=1)):
        await eventually(
            lambda: noted(tmp_path / "lines", "end").total() >= 200, within_s=WAIT_S_MAX,
            what="200 jobs",
        )  # fmt: skip

    assert noted(tmp_path / "lines", "end") == dict.fromkeys(added, 1)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("no_such_module:run", "No module named 'no_such_module'"),
        ("noting_handlers:missing", "cannot: AttributeError"),
    ],
    ids=["module", "attribute"],
)
def test_a_handler_that_executors_cannot_import_is_told_in_a_sentence(
    spark, url, queue_name, target, words
):
    settings = RunSettings(host=host(url, queue_name, target), tasks=2)

    with pytest.raises(NotSupportedError, match=r"executors must be able to import") as told:
        WorkerRun(spark.sparkContext, settings, Stop()).probe()

    assert words in str(told.value)
    assert "--py-files" in str(told.value)


def test_a_server_that_executors_cannot_reach_is_told_in_a_sentence(spark, queue_name):
    settings = RunSettings(host=host("redis://127.0.0.1:1", queue_name), tasks=1)

    with pytest.raises(NotSupportedError, match="executors must reach the server"):
        WorkerRun(spark.sparkContext, settings, Stop()).probe()
