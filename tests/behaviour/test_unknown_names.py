"""A job whose name no handler has waits for a worker that knows it."""

from __future__ import annotations

import logging
import time

from chasquimq import Worker
from chasquimq.settings import RetrySettings
from support.waiting import eventually, patience


async def noop(job):
    return


async def test_an_unknown_name_waits_for_a_worker_that_has_it(queue, raw, running_worker):
    seen = []

    async def handler(job):
        seen.append((job.name, job.attempt))

    retry = RetrySettings(unknown_name_retry_ms=50)
    stranger = await running_worker({"other": noop}, retry=retry, max_attempts=1)
    await queue.add("greet", None)
    await eventually(lambda: stranger.worker.health().retried >= 3)

    await stranger.stop()
    await running_worker({"greet": handler}, max_attempts=1)

    await eventually(lambda: seen)
    assert seen == [("greet", 0)]
    assert await raw.dlq() == []


async def test_an_unknown_name_is_buried_when_nobody_came_for_it(queue, raw, running_worker):
    retry = RetrySettings(unknown_name_retry_ms=50, unknown_name_for_ms=400)
    await running_worker({"other": noop}, retry=retry, max_attempts=1)
    added_s = time.monotonic()
    await queue.add("greet", {"to": "ada"})

    (entry,) = await eventually(raw.dlq)
    assert 0.4 <= time.monotonic() - added_s < 2 * patience()
    assert (entry[b"reason"], entry[b"n"]) == (b"unknown_name", b"greet")
    assert b"greet" in entry[b"error"]


async def test_each_unknown_name_is_warned_of_once(queue, running_worker, caplog):
    retry = RetrySettings(unknown_name_retry_ms=20)
    with caplog.at_level(logging.WARNING, "chasquimq"):
        stranger = await running_worker({"other": noop}, retry=retry)
        await queue.add("greet", None)
        await queue.add("leave", None)
        await eventually(lambda: stranger.worker.health().retried >= 8)

    warnings = [record for record in caplog.records if "no handler has this name" in record.message]
    assert sorted(record.chasqui_job_name for record in warnings) == ["greet", "leave"]


async def test_an_unknown_name_is_no_failure(queue, running_worker):
    told = []
    retry = RetrySettings(unknown_name_retry_ms=20)
    stranger = await running_worker({"other": noop}, retry=retry, on_failed=told.append)
    await queue.add("greet", None)

    await eventually(lambda: stranger.worker.health().retried >= 2)

    assert stranger.worker.health().failed == 0
    assert told == []


async def test_known_names_are_not_held_up_by_unknown_ones(queue, queue_name, url):
    seen = []

    async def handler(job):
        seen.append(job.data)

    worker = Worker(queue_name, {"known": handler}, redis_url=url)
    jobs = [{"name": "unknown" if i % 2 else "known", "data": i} for i in range(200)]
    await queue.add_bulk(jobs)

    await worker.run_until_idle(delayed_within_ms=0)

    assert sorted(seen) == list(range(0, 200, 2))
    assert (await queue.counts()).delayed == 100


async def test_names_without_end_do_not_fill_the_log(queue, running_worker, caplog):
    stranger = await running_worker({"other": noop})
    await queue.add_bulk([{"name": f"made up {at}", "data": None} for at in range(1_200)])

    await eventually(lambda: stranger.worker.health().retried >= 1_200)

    assert caplog.text.count("no handler has this name") == 1_000
