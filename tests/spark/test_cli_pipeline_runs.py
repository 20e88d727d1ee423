"""`chasqui pipeline run` fills a lake beside workers, tells of it, and ends when it is told to."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from chasquimq import Queue, Worker
from chasquimq.spark.query.queries import Answers
from support.command import PROGRAM, RunningCommand
from support.waiting import eventually

SOURCES = Path(__file__).parents[2] / "src"
# A session takes half a minute to start on a busy machine, and its first batch as long.
START_S_MAX = 150.0
pytestmark = [pytest.mark.timeout(START_S_MAX * 2), pytest.mark.takes_turns]


@pytest.fixture
def environ(url) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(SOURCES), "CHASQUI_REDIS_URL": url}


@pytest.fixture
def running(environ, tmp_path):
    """Start `chasqui pipeline`; it is gone after the test."""
    started: list[RunningCommand] = []

    def start(*args: str) -> RunningCommand:
        started.append(RunningCommand(("pipeline", *args), environ, tmp_path))
        return started[-1]

    yield start
    for one in started:
        one.kill()


async def run_jobs(url: str, queue_name: str, count: int) -> None:
    async with Queue(queue_name, redis_url=url) as queue:
        await queue.add_bulk([{"name": "send", "data": number} for number in range(count)])
    await Worker(queue_name, answer, redis_url=url).run_until_idle()


async def answer(job) -> None:
    if job.data % 10 == 9 and job.attempt == 0:
        raise TimeoutError("no answer")


async def test_a_pipeline_follows_its_queue_until_a_signal_and_keeps_others_from_its_lake(
    url, queue_name, running, environ, tmp_path
):
    await run_jobs(url, queue_name, 100)
    command = ("run", "--queue", queue_name, "--lake", "lake", "--slo", "send=60000", "--json")
    following = running(*command)
    await following.until(lambda: following.out.count("\n") == 1, "a batch", START_S_MAX)
    await run_jobs(url, queue_name, 50)
    await following.until(lambda: following.out.count("\n") >= 2, "a second batch", START_S_MAX)

    other = await asyncio.create_subprocess_exec(
        *PROGRAM, "pipeline", "compact", "--lake", "lake", env=environ, cwd=tmp_path,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    _, complaint = await other.communicate()
    code = await following.ended(signal.SIGTERM)

    batches = [json.loads(line) for line in following.out.splitlines()]
    done = batches.pop()
    assert (other.returncode, code) == (1, 0)
    assert b"the lake of one pipeline at a time" in complaint
    assert sum(batch["rows"] for batch in batches) == done["rows"] == 110 + 55
    assert done["channels"] == {queue_name: "history"}
    assert {batch["lost"] for batch in batches} == {0}
    with Answers(tmp_path / "lake") as answers:
        kept = answers.sql("select sum(within), sum(breached) from gold_slo").rows
        ends = answers.sql("select sum(completed), sum(retried) from gold_minute").rows
    assert kept == [(150, 0)]
    assert ends == [(150, 15)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_while_a_jvm_starts_ends_the_jvm_too(running, environ, tmp_path, number):
    environ["TMPDIR"] = str(tmp_path)
    starting = running("once", "--lake", "lake")
    # Spark makes a folder of its own right before it starts the JVM.
    await starting.until(lambda: any(tmp_path.glob("tmp*")), "a JVM", START_S_MAX)
    await eventually(lambda: jvms_of(starting.process.pid), what="a JVM", within_s=START_S_MAX)
    (jvm,) = jvms_of(starting.process.pid)

    assert await starting.ended(number) == 130

    await eventually(lambda: not Path(f"/proc/{jvm}").exists(), what="the end of the JVM")
    assert "Traceback" not in starting.err


def jvms_of(parent: int) -> list[int]:
    """Children of a process that run Java."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(one) for one in children if "java" in str(Path(f"/proc/{one}/exe").readlink())]


@pytest.mark.parametrize(("command", "code"), [("once", 130), ("run", 0)])
async def test_a_signal_while_spark_starts_leaves_no_folder_behind(
    running, environ, tmp_path, command, code
):
    environ["TMPDIR"] = str(tmp_path)
    starting = running(command, "--lake", "lake")
    await starting.until(
        lambda: any(tmp_path.glob("chasqui-spark-*/owner")), "a folder", START_S_MAX
    )

    ended = await starting.ended(signal.SIGTERM)

    assert ended == code
    # What Spark itself says when it finds nothing any more comes after it.
    assert starting.err.startswith("starting Spark …\n")
    assert list(tmp_path.glob("chasqui-spark-*")) == []
