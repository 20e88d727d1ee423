"""Delayed adds in the events stream: told where asked for, after the fact, and never waited for."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from chasquimq import Queue, QueueEvents, blocking
from chasquimq.errors import SettingsError
from chasquimq.settings import ProducerSettings
from chasquimq.wire.events import decode_event
from support.faultproxy import FaultProxy
from support.waiting import eventually


@pytest.fixture
async def telling(url, queue_name):
    async with Queue(queue_name, redis_url=url, events_enabled=True) as queue:
        yield queue


async def told(raw, count=1):
    async def is_told():
        return await raw("XLEN", raw.keys.events) >= count

    await eventually(is_told, what=f"{count} events")
    found = await raw("XRANGE", raw.keys.events, "-", "+")
    return [decode_event(fields) for _, fields in found]


async def test_a_delayed_add_is_told_with_its_wait(telling, raw):
    job = await telling.add("later", 1, delay_ms=60_000)

    (event,) = await told(raw)

    assert (event.kind, event.job_id, event.name) == ("delayed", job.id, "later")
    assert (event.delay_ms, event.due_ms, event.rest) == (60_000, None, {})
    assert abs(event.ts_ms - job.created_at_ms) < 5_000


async def test_a_delay_until_an_instant_is_told_with_its_due_time(telling, raw):
    instant = datetime.now(UTC) + timedelta(hours=1)
    await telling.add("later", 1, delay_ms=instant)

    (event,) = await told(raw)

    assert event.due_ms == int(instant.timestamp() * 1_000)
    assert 3_590_000 < event.delay_ms <= 3_600_000


async def test_a_reader_of_events_sees_numbers(telling, url, queue_name):
    await telling.add("later", 1, delay_ms=60_000)

    async with QueueEvents(queue_name, redis_url=url, last_event_id="0") as events:
        event = await asyncio.wait_for(anext(events), 5)

    assert (event.name, event.fields["delay_ms"]) == ("delayed", 60_000)


async def test_a_bulk_is_told_in_one_write_and_without_what_is_ready(url, queue_name, raw):
    async with (
        FaultProxy(url) as proxy,
        Queue(queue_name, redis_url=proxy.url, events_enabled=True) as queue,
    ):
        # They open the connection, and teach the server the scripts.
        await queue.add("first", 0)
        await queue.add("first", 0, delay_ms=60_000)
        await told(raw, 1)
        before = proxy.write_count
        jobs = await queue.add_bulk(
            [{"name": "n", "data": at, "delay_ms": 60_000 * (at % 2)} for at in range(100)]
        )
        _, *events = await told(raw, 51)

        assert [event.job_id for event in events] == [job.id for job in jobs[1::2]]
        # The ready ones, the delayed ones, the events.
        assert proxy.write_count - before == 3


async def test_only_the_first_add_of_an_id_is_told(telling, raw):
    for data in (1, 1, 2):
        await telling.add("later", data, delay_ms=60_000, job_id="own")
    await telling.add("marker", 1, delay_ms=60_000)

    events = await told(raw, 2)

    assert [event.name for event in events] == ["later", "marker"]


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="no delay"),
        pytest.param({"delay_ms": 0}, id="a delay of 0"),
        pytest.param({"delay_ms": datetime(2020, 1, 1, tzinfo=UTC)}, id="an instant long past"),
    ],
)
async def test_what_is_ready_at_once_is_not_told(telling, raw, options):
    await telling.add("now", 1, **options)
    await telling.add("marker", 1, delay_ms=60_000)

    events = await told(raw)

    assert [event.name for event in events] == ["marker"]


async def test_nothing_is_told_unless_asked_for(queue, raw):
    await queue.add("later", 1, delay_ms=60_000)
    await queue.counts()

    assert await raw("EXISTS", raw.keys.events) == 0


async def test_what_was_added_right_before_the_queue_closed_is_told(url, queue_name, raw):
    async with Queue(queue_name, redis_url=url, events_enabled=True) as queue:
        await asyncio.gather(*(queue.add("later", at, delay_ms=60_000) for at in range(5)))

    assert len(await told(raw, 5)) == 5


async def test_the_blocking_queue_tells_too(url, queue_name, raw):
    def program():
        with blocking.Queue(queue_name, redis_url=url, events_enabled=True) as queue:
            queue.add("later", 1, delay_ms=60_000)

    await asyncio.to_thread(program)

    assert [event.kind for event in await told(raw)] == ["delayed"]


async def test_an_event_that_is_refused_is_no_concern_of_the_add(telling, raw):
    await raw("SET", raw.keys.events, "not a stream")

    for data in (1, 2):
        await telling.add("later", data, delay_ms=60_000)

    assert await raw("ZCARD", raw.keys.delayed) == 2
    assert await telling.counts()


async def test_events_that_are_refused_are_counted_and_logged_once(telling, raw, caplog):
    await raw("SET", raw.keys.events, "not a stream")

    for data in (1, 2):
        await telling.add("later", data, delay_ms=60_000)
    await eventually(lambda: telling.events_dropped_count == 2)

    (line,) = [one for one in caplog.records if "events of delayed adds" in one.getMessage()]
    assert (line.levelname, line.chasqui_queue, line.chasqui_count) == ("WARNING", telling.name, 1)
    assert telling.events_unproven_count == 0


async def test_events_whose_reply_was_lost_are_no_loss(url, queue_name, raw):
    async with (
        FaultProxy(url) as proxy,
        Queue(queue_name, redis_url=proxy.url, events_enabled=True) as queue,
    ):
        await queue.add("later", 1, delay_ms=60_000)
        # The event leaves in the tick after the answer to the add.
        proxy.drop_replies()
        await told(raw)
        proxy.cut()
        await eventually(lambda: queue.events_unproven_count == 1)

        assert queue.events_dropped_count == 0


def test_a_stream_without_room_is_refused():
    with pytest.raises(SettingsError, match="events_max_stream_len"):
        ProducerSettings(events_max_stream_len=0)
