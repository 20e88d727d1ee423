"""A job whose name no handler has waits for a worker that knows it."""

from __future__ import annotations

import logging
import re
import time

from chasquimq import Worker
from chasquimq.queue.inspector import Inspector
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


def warnings_of(caplog) -> list[logging.LogRecord]:
    return [one for one in caplog.records if "no handler has the name" in one.getMessage()]


async def test_each_unknown_name_is_warned_of_once_in_a_while(queue, running_worker, caplog):
    retry = RetrySettings(unknown_name_retry_ms=20)
    with caplog.at_level(logging.WARNING, "chasquimq"):
        stranger = await running_worker({"other": noop}, retry=retry)
        await queue.add("greet", None)
        await queue.add("leave", None)
        await eventually(lambda: stranger.worker.health().retried >= 8)

    assert sorted(one.chasqui_job_name for one in warnings_of(caplog)) == ["greet", "leave"]


async def test_the_warning_says_what_the_worker_knows_and_what_comes_next(
    queue, queue_name, running_worker, caplog
):
    names = ["resize", "send", *(f"other_{at}" for at in range(50))]
    retry = RetrySettings(unknown_name_retry_ms=2_500, unknown_name_for_ms=90_000)
    with caplog.at_level(logging.WARNING, "chasquimq"):
        await running_worker(dict.fromkeys(names, noop), retry=retry)
        job = await queue.add("sned", None)
        (warning,) = await eventually(lambda: warnings_of(caplog))

    said = warning.getMessage()
    assert said.startswith(f"job {job.id} of queue {queue_name}: no handler has the name 'sned'; ")
    assert "; did you mean 'send'?" in said
    assert "this worker has handlers for 'send', 'resize', 'other_0'" in said
    assert "'other_40'" not in said
    assert " more; " in said
    assert "put back every 2.5 s" in said
    assert re.search(r"buried as unknown_name at \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ, in 90 s", said)
    assert warning.chasqui_job_id == job.id


async def test_a_job_without_a_name_is_warned_of_as_such(queue, running_worker, caplog):
    await running_worker({"other": noop})
    job = await queue.add("", None)

    def said() -> str:
        return "".join(one.getMessage() for one in caplog.records if job.id in one.getMessage())

    text = await eventually(said)
    assert "the job has no name, and no handler is for jobs without one" in text
    assert "did you mean" not in text


async def test_a_job_that_waits_for_a_handler_says_so_wherever_it_is_looked_at(
    queue, queue_name, url, running_worker
):
    stranger = await running_worker({"send": noop})
    job = await queue.add("sned", None)
    await eventually(lambda: stranger.worker.health().retried == 1)

    state = await queue.get_job(job.id)
    async with Inspector(redis_url=url) as inspector:
        (listed,) = await inspector.delayed(queue_name)

    for one in (state, listed):
        assert one.waits_for == "a worker with a handler named 'sned'"
        assert 0 <= one.waits_since_ms - job.created_at_ms < 60_000
        assert one.waits_until_ms == one.waits_since_ms + 600_000


async def test_a_job_that_waits_for_its_time_waits_for_no_handler(queue, queue_name, url):
    job = await queue.add("send", None, delay_ms=60_000)

    async with Inspector(redis_url=url) as inspector:
        (listed,) = await inspector.delayed(queue_name)

    assert (await queue.get_job(job.id)).waits_for is None
    assert listed.waits_for is None


async def test_a_retry_of_a_job_whose_handler_was_found_waits_for_no_handler(
    queue, raw, running_worker
):
    async def fails(job):
        raise ValueError("at first")

    retry = RetrySettings(unknown_name_retry_ms=50)
    stranger = await running_worker({"send": noop}, retry=retry)
    job = await queue.add("sned", None)
    await eventually(lambda: stranger.worker.health().retried >= 1)
    await stranger.stop()
    patient = RetrySettings(initial_backoff_ms=600_000, max_backoff_ms=600_000)
    knows = await running_worker({"sned": fails}, retry=patient)
    await eventually(lambda: knows.worker.health().failed == 1)

    state = await queue.get_job(job.id)

    assert (state.state, state.attempt, state.waits_for) == ("delayed", 1, None)
    (member,) = await raw("ZRANGE", raw.keys.delayed, 0, -1)
    assert b"unknown_" not in member


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

    assert caplog.text.count("no handler has the name") == 1_000
