"""From the streams of a server to the tables of a lake, and on where it stopped."""

from __future__ import annotations

import fcntl
import shutil
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from chasquimq.errors import SettingsError
from chasquimq.spark.lake.checkpoints import only_pipeline
from chasquimq.spark.lake.lake import Lake
from chasquimq.spark.pipeline.streaming import ChannelQuery
from support.attempts import failed
from support.waiting import eventually

RETRIED, DEAD = 1, 2
pytestmark = pytest.mark.takes_turns


def test_attempts_flow_into_every_table(feed, pipeline, ask):
    feed.attempts(30, 20)
    feed.attempts(0, is_last=True)

    run = pipeline().once()

    assert (run.batches, run.rows, run.lost) == (1, 50, 0)
    assert run.channels == {feed.queue: "history"}
    assert ask("select count(*) n, count(distinct job_id) jobs from bronze_attempts") == [
        {"n": 50, "jobs": 50}
    ]
    assert ask("select status, count(*) n from silver_jobs group by 1") == [
        {"status": "completed", "n": 50}
    ]
    assert ask("select sum(started)::int s, sum(completed)::int c from gold_minute") == [
        {"s": 50, "c": 50}
    ]
    assert ask("select sum(within)::int w, sum(breached)::int b from gold_slo") == [
        {"w": 50, "b": 0}
    ]
    assert ask("select run, entries, is_ended from bronze_runs") == [
        {"run": "run-1", "entries": 3, "is_ended": True}
    ]
    assert ask("select count(*) n from bronze_gaps") == [{"n": 0}]


def test_what_was_read_is_not_read_again(feed, pipeline, counts):
    feed.attempts(10)
    pipeline().once()
    before = counts()

    again = pipeline().once()

    assert again.batches == 0
    assert counts() == before


def test_the_pipeline_goes_on_where_it_stopped(feed, pipeline, counts):
    feed.attempts(10)
    pipeline().once()
    feed.attempts(7)

    run = pipeline().once()

    assert run.rows == 7
    assert counts() == {
        "bronze_attempts": 17, "silver_attempts": 17, "silver_jobs": 17, "completed": 17,
        "retried": 0, "dead": 0,
    }  # fmt: skip


def test_a_job_that_fails_and_dies_in_another_batch_is_one_job(feed, pipeline, ask):
    feed.rows([("a", 1, RETRIED, failed())])
    pipeline().once()
    feed.rows([("a", 2, RETRIED, failed()), ("a", 3, DEAD, failed("gone")), ("b", 2, 0, None)])

    pipeline().once()

    jobs = ask("select job_id, attempts, failures, status, reason from silver_jobs order by 1")
    assert jobs == [
        {"job_id": "a", "attempts": 3, "failures": 3, "status": "dead", "reason": "gone"},
        {"job_id": "b", "attempts": 1, "failures": 0, "status": "completed", "reason": None},
    ]


def test_small_batches_add_up_to_the_same_as_a_large_one(feed, pipeline, settings, ask, counts):
    for _ in range(5):
        feed.attempts(900)

    run = pipeline(max_rows_per_batch=1_000).once()

    assert run.batches == 5
    assert counts() == {
        "bronze_attempts": 4_500, "silver_attempts": 4_500, "silver_jobs": 4_500,
        "completed": 4_500, "retried": 0, "dead": 0,
    }  # fmt: skip
    # Compaction has made one row of the parts of a key.
    assert len(Lake(settings.lake).files("gold_minute")) == 1
    assert Lake(settings.lake).rows("gold_minute", ["queue"]).num_rows == 1


def test_a_queue_keeps_its_channel(feed, pipeline):
    feed.attempts(1)
    pipeline().once()

    with pytest.raises(SettingsError, match="channel must be history"):
        pipeline(channel="events").once()


def test_a_lost_checkpoint_doubles_nothing(feed, pipeline, settings, counts):
    feed.attempts(5, 5)
    pipeline().once()
    shutil.rmtree(settings.lake / "_pipeline")
    feed.attempts(3)

    run = pipeline().once()

    assert run.rows == 3
    assert (counts()["bronze_attempts"], counts()["completed"]) == (13, 13)


async def test_a_running_pipeline_follows_and_when_told_to_stop_tidies_its_lake(
    feed, pipeline, settings, counts
):
    stop, reports = threading.Event(), []
    thread = threading.Thread(target=pipeline().run, args=(stop, reports.append))
    feed.attempts(4)
    thread.start()

    try:
        await eventually(lambda: sum(report.rows for report in reports) == 4, within_s=120)
        feed.attempts(4)
        feed.rows([("a", 2, 0, None)])
        await eventually(lambda: sum(report.rows for report in reports) == 9, within_s=60)
    finally:
        stop.set()
        thread.join(60)

    assert not thread.is_alive()
    assert (counts()["bronze_attempts"], counts()["completed"]) == (9, 9)
    # The part of a job has become the job.
    assert Lake(settings.lake).files("silver_jobs_parts") == []


def test_who_interrupts_a_batch_gets_the_lake_when_the_batch_is_done(
    feed, pipeline, settings, counts, monkeypatch
):
    begun, freed = threading.Event(), []

    def interrupted(_self, _query) -> None:
        assert begun.wait(150)
        raise KeyboardInterrupt

    def slow(_report) -> None:
        begun.set()
        freed.append(_is_free_soon(settings.lake))

    monkeypatch.setattr(ChannelQuery, "wait", interrupted)
    feed.attempts(5)

    with pytest.raises(KeyboardInterrupt):
        pipeline().once(slow)

    assert freed == [False]
    assert counts()["bronze_attempts"] == 5


def _is_free_soon(lake: Path) -> bool:
    """Whether another pipeline could have the lake within a while."""
    until_s = time.monotonic() + 1.5
    while time.monotonic() < until_s:
        with (lake / "_pipeline" / "lock").open("a") as file, suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(0.05)
    return False


def test_two_pipelines_on_one_lake_are_refused(pipeline, settings):
    with (
        only_pipeline(Lake(settings.lake)),
        pytest.raises(SettingsError, match="one pipeline at a time"),
    ):
        pipeline().once()


def test_where_nothing_is_there_is_nothing_to_do(pipeline, settings):
    run = pipeline().once()

    assert (run.batches, run.channels) == (0, {})
    assert Lake(settings.lake).table("gold_minute").count() == 0
