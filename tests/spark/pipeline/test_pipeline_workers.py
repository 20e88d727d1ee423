"""What real workers did, and what the tables say about it: the same, to the job."""

from __future__ import annotations

import asyncio
import os
import time

import pytest

from chasquimq import BackoffSpec, InMemorySink, Queue, RetryLater, UnrecoverableError, Worker
from chasquimq.settings import ConnectionSettings
from chasquimq.spark.lake.files import write_table
from chasquimq.spark.lake.lake import Change, Lake
from chasquimq.spark.pipeline.backlog import Backlog
from chasquimq.spark.pipeline.sampler import ServerSampler
from support.processes import WorkerFleet
from support.waiting import eventually

IS_BIG = os.environ.get("CHASQUI_TEST_BIG") == "1"
# A stream of events holds 100,000, of which a job makes about three.
JOBS = {"history": 100_000, "events": 30_000} if IS_BIG else {"history": 1_500, "events": 1_500}
# Several batches of a large queue, one of a small one.
BATCH_ROWS = 30_000
# For so long nothing may move before a day counts as settled.
QUIET_S = 3.0
pytestmark = [pytest.mark.timeout(1_200 if IS_BIG else 240), pytest.mark.takes_turns]


class Fickle:
    """Most jobs succeed; some fail once, some always, some ask to come back, some give up."""

    def __init__(self) -> None:
        self._snoozed: set[str] = set()

    async def __call__(self, job) -> None:
        await asyncio.sleep(0)
        number = job.data["number"]
        if number % 50 == 1 and job.attempt == 0:
            raise ValueError(f"once {number}")
        if number % 100 == 2:
            raise RuntimeError("always")
        if number % 100 == 3:
            raise UnrecoverableError("never")
        if number % 100 == 4 and job.id not in self._snoozed:
            self._snoozed.add(job.id)
            raise RetryLater(1)


@pytest.fixture(params=list(JOBS))
def channel(request) -> str:
    return request.param


@pytest.fixture
async def worked(url, queue_name, channel):
    """A queue whose jobs are all done, and the sink that counted them."""
    sink = InMemorySink()
    async with Queue(queue_name, redis_url=url) as queue:
        backoff = BackoffSpec.fixed(1)
        names = ("send", "charge", "")
        specs = [
            {"name": names[n % 3], "data": {"number": n}, "attempts": 3, "backoff": backoff}
            for n in range(JOBS[channel])
        ]
        await queue.add_bulk(specs)
        worker = Worker(queue_name, Fickle(), redis_url=url, metrics=sink)
        await worker.run_until_idle()
        await eventually(lambda: is_done(queue), what="an empty queue")
        await worker.close()
    return sink


async def is_done(queue: Queue) -> bool:
    return (await queue.counts()).backlog == 0


def test_the_tables_add_up_to_what_the_workers_counted(worked, pipeline, ask, channel):
    run = pipeline(channel=channel, max_rows_per_batch=BATCH_ROWS).once()

    assert run.lost == 0
    (gold,) = ask(
        "select sum(started)::int started, sum(completed)::int completed, sum(failed)::int failed,"
        " sum(retried)::int retried, sum(dead)::int dead from gold_minute"
    )
    assert gold == {
        "started": worked.handler_invocations(),
        "completed": worked.jobs_completed(),
        "failed": worked.jobs_failed(),
        "retried": worked.total_retries() - worked.jobs_snoozed(),
        "dead": worked.dlq_count(),
    }
    assert ask("select count(*) n from silver_jobs") == [{"n": JOBS[channel]}]
    statuses = {row["status"]: row["n"] for row in ask(_STATUSES)}
    assert statuses == {"completed": worked.jobs_completed(), "dead": worked.dlq_count()}


_STATUSES = "select status, count(*) n from silver_jobs group by status"


def test_the_audit_finds_a_row_for_all_that_the_server_counted(worked, pipeline, ask, channel):
    pipeline(channel=channel).once()

    (row,) = ask("select * from gold_audit")
    assert row["channel"] == channel
    assert row["server_finished"] == row["rows_finished"] > JOBS[channel]
    assert (row["missing_proven"], row["missing_maybe"], row["surplus"]) == (0, 0, 0)
    assert (row["jobs_with_two_ends"], row["ends_after_dlq"]) == (0, 0)
    assert row["open_runs"] == (0 if channel == "history" else None)
    assert row["starts_without_end_proven"] == (None if channel == "history" else 0)


@pytest.fixture
def fleet(url, queue_name, tmp_path):
    fleet = WorkerFleet(url, queue_name, tmp_path)
    yield fleet
    fleet.close()


@pytest.fixture
def look(url, queue_name, settings):
    """Looks at the queue and writes it down, as a pipeline does between two batches."""
    sampler = ServerSampler(ConnectionSettings(url=url))
    lake = Lake(settings.lake)
    lake.create_missing()

    def looked() -> None:
        backlog = Backlog(lake, {})
        backlog.add(sampler.sample([queue_name]))
        for name, rows in backlog.rows().items():
            lake.commit(Change(table=name, adds=write_table(lake.path, name, rows, "look")))

    yield looked
    sampler.close()


async def test_what_a_killed_worker_had_not_written_may_be_explained_though_it_came_back(
    queue, raw, fleet, pipeline, ask, look
):
    look()
    named = {"consumer_id": "w1", "claim_min_idle_ms": 1_000}
    first = await fleet.start("noop", failpoint="before_history_sent:2:exit", **named)
    await done(queue, 10)
    await eventually(lambda: has_history(raw, 1), what="a history")
    for number in range(20):
        await queue.add("send", number)
    await fleet.until_dead(first)
    await fleet.start("noop", **named)
    await done(queue, 5)
    await eventually(lambda: has_history(raw, 2), what="the history of its second life")
    look()
    quiet_s = time.monotonic() + QUIET_S
    await eventually(lambda: time.monotonic() > quiet_s, what="a quiet queue")

    await asyncio.to_thread(pipeline(channel="history").once)

    (row,) = ask("select * from gold_audit")
    missing = row["server_finished"] - row["rows_finished"]
    assert row["is_settled"]
    assert missing > 0
    assert (row["open_runs"], row["missing_proven"], row["missing_maybe"]) == (1, 0, missing)


async def done(queue, count: int) -> None:
    for number in range(count):
        await queue.add("send", number)
    await eventually(lambda: is_done(queue), what="an empty queue")


async def has_history(raw, count: int) -> bool:
    return await raw("XLEN", raw.keys.history) >= count
