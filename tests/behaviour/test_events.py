"""Events: never before the fact, none missed between two polls, resumed where they broke."""

from __future__ import annotations

import asyncio

import pytest

from chasquimq import QueueEvents, UnrecoverableError
from chasquimq.errors import SettingsError
from chasquimq.settings import RetrySettings
from support.waiting import eventually


async def collect(events: QueueEvents, count: int, within_s: float = 10):
    seen = []
    async with asyncio.timeout(within_s):
        async for event in events:
            seen.append(event)
            if len(seen) == count:
                return seen
    return seen


async def handler(job):
    if job.name == "slow":
        await asyncio.sleep(0.05)
    if job.name == "flaky" and job.attempt == 0:
        raise ValueError("try again")
    if job.name == "dead":
        raise UnrecoverableError("never")


@pytest.fixture
async def events(url, queue_name):
    async with QueueEvents(queue_name, redis_url=url, last_event_id="0") as events:
        yield events


async def test_a_completed_job_is_active_first_and_completed_after(queue, events, running_worker):
    await running_worker(handler)
    job = await queue.add("fast", 1)

    active, completed = await collect(events, 2)

    assert (active.name, active.job_id, active.job_name) == ("active", job.id, "fast")
    assert (completed.name, completed.attempt) == ("completed", 1)
    assert completed.fields["enq"] == job.created_at_ms
    assert completed.fields["dc"] == 1


async def test_a_waiting_handler_is_announced_while_it_runs(queue, events, running_worker):
    gate = asyncio.Event()

    async def wait(job):
        await gate.wait()

    await running_worker(wait)
    await queue.add("long", 1)

    (active,) = await collect(events, 1)
    gate.set()
    (completed,) = await collect(events, 1)
    assert (active.name, completed.name) == ("active", "completed")


async def test_a_retry_tells_the_failure_the_wait_and_the_next_run(queue, events, running_worker):
    await running_worker(handler)
    await queue.add(
        "flaky", 1, attempts=3, backoff={"kind": "fixed", "delay_ms": 1, "jitter_ms": 0}
    )

    seen = await collect(events, 6)

    assert [event.name for event in seen] == [
        "active", "failed", "retry-scheduled", "waiting", "active", "completed",
    ]  # fmt: skip
    assert [event.attempt for event in seen] == [1, 1, 2, None, 2, 2]
    assert (seen[1].reason, seen[1].fields["ec"]) == ("try again", "ValueError")
    assert seen[2].fields["backoff_ms"] == 1
    assert seen[3].job_name == "flaky"


async def test_a_buried_job_tells_its_failure_and_its_reason(queue, events, running_worker):
    await running_worker(handler)
    await queue.add("dead", 1)

    active, failed, dlq = await collect(events, 3)

    assert (active.name, failed.name, dlq.name) == ("active", "failed", "dlq")
    assert (failed.reason, dlq.reason) == ("never", "unrecoverable")


async def test_a_name_that_nobody_handles_never_starts_and_never_fails(
    queue, events, running_worker
):
    retry = RetrySettings(unknown_name_retry_ms=100, unknown_name_for_ms=50, jitter_ms=0)
    await running_worker({"other": handler}, retry=retry)
    await queue.add("greet", 1)

    seen = await collect(events, 3)

    assert [event.name for event in seen] == ["retry-scheduled", "waiting", "dlq"]
    assert [event.attempt for event in seen] == [1, None, 0]
    assert seen[2].reason == "unknown_name"


async def test_an_entry_that_cannot_be_read_is_told_without_an_id(raw, events, running_worker):
    await running_worker(handler)
    await raw("XADD", raw.keys.stream, "*", "x", "1")

    (dlq,) = await collect(events, 1)

    assert (dlq.name, dlq.job_id, dlq.attempt, dlq.reason) == ("dlq", None, 0, "malformed")


@pytest.mark.parametrize(
    ("level", "names"),
    [
        pytest.param("full", {"active", "completed"}, id="full"),
        pytest.param("terminal", {"completed"}, id="terminal"),
    ],
)
async def test_the_level_decides_what_is_told(queue, events, running_worker, level, names):
    await running_worker(handler, events=level)
    await queue.add_bulk([{"name": "fast", "data": at} for at in range(10)])

    seen = await collect(events, 10 * len(names))

    assert {event.name for event in seen} == names


async def test_events_that_are_off_write_nothing(queue, raw, running_worker):
    await running_worker(handler, events_enabled=False)
    await queue.add("fast", 1)

    async def is_done():
        return (await queue.counts()).backlog == 0

    await eventually(is_done)
    assert await raw("EXISTS", raw.keys.events) == 0


async def test_a_drained_queue_is_told_once(queue, events, running_worker):
    await running_worker(handler, read_block_ms=20)
    await queue.add("fast", 1)

    seen = await collect(events, 3)

    assert [event.name for event in seen] == ["active", "completed", "drained"]


async def test_what_comes_between_two_polls_is_not_missed(url, queue_name, raw):
    async with QueueEvents(queue_name, redis_url=url, block_ms=1) as events:
        first_poll = asyncio.create_task(collect(events, 50))
        await eventually(lambda: "$" not in events.last_event_ids.values())
        for at in range(50):
            await raw("XADD", raw.keys.events, "*", "e", "active", "id", str(at), "ts", "1")

        assert [event.job_id for event in await first_poll] == [str(at) for at in range(50)]


async def test_a_reader_resumes_after_the_last_event_it_saw(url, queue_name, raw):
    for at in range(4):
        await raw("XADD", raw.keys.events, "*", "e", "active", "id", str(at), "ts", "1")
    async with QueueEvents(queue_name, redis_url=url, last_event_id="0") as events:
        seen = await collect(events, 2)

    resume_at = seen[-1].entry_id
    async with QueueEvents(queue_name, redis_url=url, last_event_id=resume_at) as events:
        assert [event.job_id for event in await collect(events, 2)] == ["2", "3"]


async def test_several_queues_are_followed_at_once(url, queue_name, raw):
    other = f"{queue_name}-b"
    async with QueueEvents([queue_name, other], redis_url=url, last_event_id="0") as events:
        await raw("XADD", raw.keys.events, "*", "e", "active", "id", "1", "ts", "1")
        await raw("XADD", raw.keys.events.replace(queue_name, other), "*", "e", "x", "id", "2")

        seen = await collect(events, 2)

    assert {(event.queue, event.job_id) for event in seen} == {(queue_name, "1"), (other, "2")}


async def test_foreign_words_are_passed_on(raw, events):
    await raw("XADD", raw.keys.events, "*", "e", "new-kind", "id", "", "ts", "soon", "z", b"\xff")

    (event,) = await collect(events, 1)

    assert (event.name, event.job_id, event.fields["ts"]) == ("new-kind", None, "soon")


async def test_a_broken_connection_is_opened_again(raw, events):
    await raw("XADD", raw.keys.events, "*", "e", "active", "id", "1", "ts", "1")
    await collect(events, 1)

    clients = await raw("CLIENT", "LIST")
    mine = [line for line in clients.splitlines() if b"name=chasqui-events" in line]
    for line in mine:
        await raw("CLIENT", "KILL", "ID", line.split(b"id=")[1].split()[0])
    await raw("XADD", raw.keys.events, "*", "e", "active", "id", "2", "ts", "1")

    assert [event.job_id for event in await collect(events, 1)] == ["2"]


async def test_callbacks_are_called_for_the_events_they_name(raw, events):
    seen = []
    events.on("active", lambda event: seen.append(event.job_id))
    running = asyncio.create_task(events.run())
    for name, job_id in (("active", "1"), ("completed", "2"), ("active", "3")):
        await raw("XADD", raw.keys.events, "*", "e", name, "id", job_id, "ts", "1")

    await eventually(lambda: len(seen) == 2)
    await events.close()
    await running
    assert seen == ["1", "3"]


@pytest.mark.parametrize("text", ["", "new", "-", "1-x", 5])
def test_a_place_that_is_none_is_refused(text):
    with pytest.raises(SettingsError, match="last_event_id"):
        QueueEvents("q", last_event_id=text)
