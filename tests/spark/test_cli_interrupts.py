"""One Ctrl+C ends every command of pipeline and spark, also while a JVM starts or runs."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chasquimq import Queue, Worker
from chasquimq.spark.lake.lake import Lake
from support.command import PROGRAM
from support.interrupting import assert_ends_well, assert_no_drafts, duration_s, interrupt, moments
from support.made_lake import make_example

SOURCES = Path(__file__).parents[2] / "src"
pytestmark = [pytest.mark.takes_turns, pytest.mark.slow, pytest.mark.timeout(7_200)]

# These read the tables, without a JVM.
READING = {
    "status": ["status"],
    "sql": ["sql", "select count(*) from gold_minute"],
    "report": ["report", "--output", "report.html"],
    "report as text": ["report"],
    "compact": ["compact"],
}  # fmt: skip
# These start one.
WITH_A_JVM = {
    "once": ["pipeline", "once", "--lake", "lake"],
    "spark enqueue": ["spark", "enqueue", "--parquet", "rows.parquet", "--queue", "QUEUE",
                      "--name", "send"],
    "demo": ["demo", "--jobs", "1000"],
}  # fmt: skip
# A run goes on until somebody ends it.
RUN_S = 25.0


@pytest.fixture
def environ(url, tmp_path) -> dict[str, str]:
    (tmp_path / "tmp").mkdir()
    more = {"PYTHONPATH": str(SOURCES), "CHASQUI_REDIS_URL": url, "TMPDIR": str(tmp_path / "tmp")}
    return os.environ | more


@pytest.fixture
async def folder(url, queue_name, tmp_path) -> Path:
    """A queue with a history, a lake, and a table to fill a queue from."""
    async with Queue(queue_name, redis_url=url) as queue:
        await queue.add_bulk([{"name": "send", "data": at} for at in range(200)])

    async def send(job) -> None: ...

    await Worker(queue_name, send, redis_url=url).run_until_idle()
    make_example(tmp_path / "made")
    pq.write_table(pa.table({"data": ["x"] * 100}), tmp_path / "rows.parquet")
    (tmp_path / "tasks.py").write_text("async def send(job):\n    return\n")
    return tmp_path


@pytest.mark.parametrize("name", READING)
async def test_a_command_that_reads_tables_ends_at_once(environ, folder, name):
    command = [*PROGRAM, "pipeline", *READING[name], "--lake", "made"]
    took_s = await asyncio.to_thread(duration_s, command, environ, folder)

    await assert_ends_well(command, took_s, environ, folder)


@pytest.mark.parametrize("name", WITH_A_JVM)
async def test_a_command_with_a_jvm_ends_at_once_and_so_does_the_jvm(
    environ, folder, queue_name, name
):
    words = [queue_name if word == "QUEUE" else word for word in WITH_A_JVM[name]]
    command = [*PROGRAM, *words]
    took_s = await asyncio.to_thread(duration_s, command, environ, folder)
    shutil.rmtree(folder / "lake", ignore_errors=True)

    await assert_ends_well(command, took_s, environ, folder)


async def test_a_day_is_made_again_or_left_as_it_was(environ, folder):
    await asyncio.to_thread(
        duration_s, [*PROGRAM, "pipeline", "once", "--lake", "lake"], environ, folder
    )
    days = Lake(folder / "lake").days("bronze_attempts")
    command = [*PROGRAM, "pipeline", "backfill", str(days[-1]), "--lake", "lake"]
    took_s = await asyncio.to_thread(duration_s, command, environ, folder)

    await assert_ends_well(command, took_s, environ, folder)


async def test_a_run_ends_with_its_batch_and_one_line(environ, folder, queue_name):
    command = [*PROGRAM, "pipeline", "run", "--queue", queue_name, "--lake", "lake"]

    await assert_ends_well(command, RUN_S, environ, folder)


async def test_workers_on_spark_end_with_130_and_leave_nobody(environ, folder, queue_name):
    command = [*PROGRAM, "spark", "worker", "--queue", queue_name, "--handler", "tasks:send",
               "--master", "local[2]"]  # fmt: skip
    for after_s in moments(RUN_S):
        ended = await asyncio.to_thread(interrupt, command, after_s, environ, folder)
        assert ended.code == 130, ended
        assert "Traceback" not in ended.said, ended
        assert_no_drafts(folder)
