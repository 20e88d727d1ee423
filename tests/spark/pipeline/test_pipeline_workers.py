"""What real workers did, and what the tables say about it: the same, to the job."""

from __future__ import annotations

import asyncio

import pytest

from chasquimq import BackoffSpec, InMemorySink, Queue, RetryLater, UnrecoverableError, Worker
from support.processes import WorkerFleet
from support.waiting import eventually

JOBS = 1_500


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


@pytest.fixture
async def worked(url, queue_name):
    """A queue whose jobs are all done, and the sink that counted them."""
    sink = InMemorySink()
    async with Queue(queue_name, redis_url=url) as queue:
        backoff = BackoffSpec.fixed(1)
        names = ("send", "charge", "")
        specs = [
            {"name": names[n % 3], "data": {"number": n}, "attempts": 3, "backoff": backoff}
            for n in range(JOBS)
        ]
        for spec in specs:
            await queue.add(**spec)
        worker = Worker(queue_name, Fickle(), redis_url=url, metrics=sink)
        await worker.run_until_idle()
        await eventually(lambda: is_done(queue), what="an empty queue")
        await worker.close()
    return sink


async def is_done(queue: Queue) -> bool:
    return (await queue.counts()).backlog == 0


@pytest.mark.parametrize("channel", ["history", "events"])
def test_the_tables_add_up_to_what_the_workers_counted(worked, pipeline, ask, channel):
    run = pipeline(channel=channel).once()

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
    assert ask("select count(*) n from silver_jobs") == [{"n": JOBS}]
    statuses = {row["status"]: row["n"] for row in ask(_STATUSES)}
    assert statuses == {"completed": worked.jobs_completed(), "dead": worked.dlq_count()}


_STATUSES = "select status, count(*) n from silver_jobs group by status"


@pytest.mark.parametrize("channel", ["history", "events"])
def test_the_audit_finds_a_row_for_all_that_the_server_counted(worked, pipeline, ask, channel):
    pipeline(channel=channel).once()

    (row,) = ask("select * from gold_audit")
    assert row["channel"] == channel
    assert row["server_finished"] == row["rows_finished"] > JOBS
    assert (row["missing_proven"], row["missing_maybe"], row["surplus"]) == (0, 0, 0)
    assert (row["jobs_with_two_ends"], row["ends_after_dlq"]) == (0, 0)
    assert row["open_runs"] == (0 if channel == "history" else None)
    assert row["starts_without_end_proven"] == (None if channel == "history" else 0)


@pytest.fixture
def fleet(url, queue_name, tmp_path):
    fleet = WorkerFleet(url, queue_name, tmp_path)
    yield fleet
    fleet.close()


async def test_a_worker_that_was_killed_leaves_a_run_with_an_open_end(
    queue, raw, fleet, pipeline, ask
):
    worker = await fleet.start("noop")
    for number in range(50):
        await queue.add("send", number)
    await eventually(lambda: is_done(queue), what="an empty queue")
    # What it has not written yet is lost with it, so its history must have begun.
    await eventually(lambda: has_history(raw), what="a history")
    fleet.kill(worker)
    await forget_consumers(raw)

    await asyncio.to_thread(pipeline(channel="history").once)

    (row,) = ask("select open_runs, missing_proven from gold_audit")
    assert row == {"open_runs": 1, "missing_proven": 0}


async def has_history(raw) -> bool:
    return await raw("XLEN", raw.keys.history) > 0


async def forget_consumers(raw) -> None:
    """As somebody does with the dead, once their lease is over."""
    for name in await raw.consumers():
        await raw("XGROUP", "DELCONSUMER", raw.keys.stream, "default", name)
