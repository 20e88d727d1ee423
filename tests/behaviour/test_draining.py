"""What waits is removed by a filter or all of it, page by page, and never what a worker holds."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest

from chasquimq import Queue
from chasquimq.errors import KindRefused, ServerRefused, SettingsError
from support.waiting import eventually

HOUR_MS = 3_600_000
NOW = datetime.now(UTC)


async def test_ready_and_delayed_jobs_are_removed_and_counted_apart(queue, raw):
    await queue.add_bulk([{"name": "now", "data": at} for at in range(250)])
    await queue.add_bulk([{"name": "later", "data": at, "delay_ms": HOUR_MS} for at in range(230)])

    drained = await queue.drain()

    assert (drained, drained.ready, drained.delayed) == (480, 250, 230)
    assert (await queue.counts()).backlog == 0
    assert await raw("EXISTS", raw.keys.dix, raw.keys.delayed) == 0


async def test_delayed_jobs_stay_where_that_is_asked_for(queue):
    await queue.add("now", 1)
    await queue.add("later", 1, delay_ms=HOUR_MS)

    drained = await queue.drain(delayed=False)

    assert (drained.ready, drained.delayed, (await queue.counts()).delayed) == (1, 0, 1)


async def test_an_empty_queue_is_drained_of_nothing(queue):
    assert await queue.drain() == 0


async def test_ids_of_removed_jobs_are_free_again_and_those_of_running_ones_are_not(
    queue, running_worker
):
    """Also of a job that was delayed and became ready: two of its markers outlive that."""
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def handler(job) -> None:
        begun.set()
        await may_end.wait()

    await running_worker(handler, concurrency=1)
    await queue.add("n", 1, job_id="running", delay_ms=1)
    await begun.wait()
    await queue.add("n", 1, job_id="ready")
    await queue.add("n", 1, job_id="later", delay_ms=HOUR_MS)

    await queue.drain()

    again = {one: await queue.add("n", 1, job_id=one) for one in ("running", "ready", "later")}
    may_end.set()
    assert {one: job.is_duplicate for one, job in again.items() if one != "ready"} == {
        "running": True, "later": False,
    }  # fmt: skip


async def test_a_delayed_job_that_became_ready_leaves_no_marker(queue, raw):
    await queue.add("n", 1, job_id="mine", delay_ms=HOUR_MS)
    (member,) = await raw("ZRANGE", raw.keys.delayed, 0, -1)
    await raw("ZREM", raw.keys.delayed, member)
    await raw("XADD", raw.keys.stream, "*", "d", member[5:], "n", "n")

    assert await queue.drain() == 1
    assert (await queue.add("n", 1, job_id="mine", delay_ms=HOUR_MS)).is_duplicate is False


async def test_running_jobs_end_as_if_nothing_had_been(queue, running_worker):
    ended, begun, may_end = [], asyncio.Event(), asyncio.Event()

    async def handler(job) -> None:
        begun.set()
        await may_end.wait()
        ended.append(job.data)

    await running_worker(handler, concurrency=1)
    await queue.add("n", "runs")
    await begun.wait()

    await queue.drain()
    may_end.set()

    await eventually(lambda: ended == ["runs"], what="the end of the running job")


async def test_every_job_either_runs_or_is_removed_where_workers_are_at_work(
    queue, running_worker, raw
):
    ran = set[int]()

    async def handler(job) -> None:
        ran.add(job.data)

    jobs = [{"name": "n", "data": at} for at in range(2_000)]
    await queue.add_bulk(jobs)
    await running_worker(handler)

    drained = await queue.drain()

    await eventually(
        lambda: len(ran) + drained == len(jobs), what=f"{drained} removed and the others run"
    )
    assert await raw("XLEN", raw.keys.stream) == 0


async def test_more_than_a_thousand_running_at_the_head_hide_no_job_behind_them(queue, raw):
    await queue.add_bulk([{"name": "n", "data": at} for at in range(1_400)])
    with suppress(ServerRefused):  # an add makes it on some servers
        await raw("XGROUP", "CREATE", raw.keys.stream, "default", "0", "MKSTREAM")
    await raw(
        "XREADGROUP", "GROUP", "default", "w", "COUNT", 1_200, "STREAMS", raw.keys.stream, ">"
    )

    assert await queue.drain() == 200
    assert len(await raw.pending()) == 1_200


async def test_what_a_worker_gave_back_waits_and_is_removed(queue, raw):
    await queue.add("n", 1)
    with suppress(ServerRefused):  # an add makes it on some servers
        await raw("XGROUP", "CREATE", raw.keys.stream, "default", "0", "MKSTREAM")
    await raw("XREADGROUP", "GROUP", "default", "returned", "STREAMS", raw.keys.stream, ">")

    assert await queue.drain() == 1
    assert await raw.pending() == []


async def test_jobs_that_nobody_can_read_are_removed_too(queue, raw):
    await raw("XADD", raw.keys.stream, "*", "d", b"\xff")
    await raw("XADD", raw.keys.stream, "*", "x", "y")
    await raw("ZADD", raw.keys.delayed, 1, b"\xff")

    assert await queue.drain() == 3


async def test_heavy_jobs_are_removed_in_small_pages(queue):
    await queue.add_bulk([{"name": "n", "data": b"x" * 700_000} for _ in range(12)])
    await queue.add_bulk(
        [{"name": "n", "data": b"x" * 700_000, "delay_ms": HOUR_MS} for _ in range(6)]
    )

    drained = await queue.drain()

    assert (drained.ready, drained.delayed) == (12, 6)


@pytest.fixture
async def waiting(queue):
    """Sixty jobs of two names, due an hour apart."""
    await queue.add_bulk([
        {"name": "mail" if at % 2 else "report", "data": at, "job_id": f"{'ab'[at % 2]}-{at:02}",
         "delay_ms": NOW + timedelta(hours=at + 1)}
        for at in range(60)
    ])  # fmt: skip
    return queue


@pytest.mark.parametrize(
    ("filters", "count"),
    [
        ({"name": "mail"}, 30),
        ({"id_prefix": "a-"}, 30),
        ({"id_prefix": "a-0"}, 5),
        ({"due_before": NOW + timedelta(hours=11)}, 10),
        ({"due_after": NOW + timedelta(hours=11)}, 50),
        ({"due_after": NOW + timedelta(hours=11), "due_before": NOW + timedelta(hours=12)}, 1),
        ({"name": "mail", "due_before": (NOW + timedelta(hours=11)).replace(tzinfo=None)}, 5),
        ({"name": "nobody"}, 0),
        ({"name": "mail", "limit": 7}, 7),
        ({"name": "mail", "limit": 0}, 0),
    ],
)
async def test_filters_that_are_given_together_must_all_match(waiting, filters, count):
    asked = await waiting.cancel_delayed_where(**filters, dry_run=True)
    left = (await waiting.counts()).delayed
    done = await waiting.cancel_delayed_where(**filters)

    assert (asked, asked.matched, left) == (0, count, 60)
    assert (done, done.matched) == (count, count)
    assert (await waiting.counts()).delayed == 60 - count
    assert [job.job_id for job in done.sample] == [job.job_id for job in asked.sample]
    assert len(done.sample) == min(10, count)


async def test_the_soonest_are_cancelled_first(waiting):
    done = await waiting.cancel_delayed_where(name="mail", limit=3)

    assert [job.job_id for job in done.sample] == ["b-01", "b-03", "b-05"]
    assert [await waiting.cancel_delayed(one) for one in ("b-01", "b-05", "b-07")] == [
        False, False, True,
    ]  # fmt: skip


async def test_thousands_of_one_due_time_are_all_met(queue, raw):
    """By halves: each page removes what the next one would begin with."""
    due = NOW + timedelta(hours=1)
    await queue.add_bulk(
        [{"name": "ab"[at % 2], "data": at, "delay_ms": due} for at in range(3_000)]
    )

    assert await queue.cancel_delayed_where(name="a") == 1_500
    assert await queue.cancel_delayed_where(name="b", limit=1_400) == 1_400
    assert await queue.cancel_delayed_where(due_before=due + timedelta(hours=1)) == 100
    assert await raw("HLEN", raw.keys.dix) == 0


async def test_ids_of_cancelled_jobs_are_free_again(waiting):
    await waiting.cancel_delayed_where(id_prefix="a-")

    assert (await waiting.add("n", 1, job_id="a-00", delay_ms=HOUR_MS)).is_duplicate is False
    assert (await waiting.add("n", 1, job_id="b-01", delay_ms=HOUR_MS)).is_duplicate is True


async def test_without_a_filter_nothing_is_cancelled(waiting):
    with pytest.raises(SettingsError, match=r"given a filter.*or call drain\(\)"):
        await waiting.cancel_delayed_where(limit=5)
    with pytest.raises(KindRefused, match="due_before must be a datetime"):
        await waiting.cancel_delayed_where(due_before=5)
    with pytest.raises(KindRefused, match="name must be a string"):
        await waiting.cancel_delayed_where(name=5)

    assert (await waiting.counts()).delayed == 60


async def test_no_call_keeps_the_server_for_long(url, queue_name, raw):
    """Of 100 entries beside 20,000 that are held, and of 100 heavy names."""
    async with Queue(queue_name, redis_url=url) as queue:
        await queue.add_bulk([{"name": "n", "data": at} for at in range(25_000)])
        with suppress(ServerRefused):  # an add makes it on some servers
            await raw("XGROUP", "CREATE", raw.keys.stream, "default", "0", "MKSTREAM")
        await raw(
            "XREADGROUP", "GROUP", "default", "w", "COUNT", 20_000, "STREAMS", raw.keys.stream, ">"
        )
        await raw("CONFIG", "RESETSTAT")

        assert await queue.drain() == 5_000

    stats = (await raw("INFO", "commandstats")).decode()
    line = next(one for one in stats.splitlines() if one.startswith("cmdstat_evalsha:"))
    mean_us = float(line.partition("usec_per_call=")[2].partition(",")[0])
    assert mean_us < 5_000


async def test_only_true_and_false_say_whether_delayed_jobs_go(queue):
    await queue.add("n", None)

    with pytest.raises(SettingsError, match="delayed must be True or False"):
        await queue.drain("no")

    assert (await queue.counts()).ready == 1
