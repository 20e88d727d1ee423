"""Each worker says of itself who it is, and what can be told from its silence."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest

import chasquimq
from chasquimq import Worker
from chasquimq.queue.inspector import Inspector
from support.waiting import eventually, patience
from support.workers import RunningWorker

LEASE_MS = 3_000
TESTS = Path(__file__).parents[1]


async def noop(job):
    return


@pytest.fixture
async def inspector(url):
    async with Inspector(redis_url=url) as inspector:
        yield inspector


async def record_of(raw, consumer: str) -> dict | None:
    found = await raw("GET", raw.keys.worker(consumer))
    return None if found is None else msgspec.msgpack.decode(found)


async def the_worker(inspector, queue_name):
    (found,) = [one for one in await inspector.workers(queue_name) if not one.is_parking]
    return found


async def test_a_running_worker_says_who_it_is_and_what_it_does(
    raw, inspector, queue_name, running_worker
):
    before_ms = time.time() * 1000
    running = await running_worker(
        {"send": noop, "resize": noop}, concurrency=7, claim_min_idle_ms=20_000, history=False
    )
    consumer = running.worker.consumer_id
    found = await eventually(lambda: record_of(raw, consumer))

    assert before_ms - 5_000 < found.pop("started_at_ms") < before_ms + 60_000
    assert found == {
        "version": chasquimq.__version__, "host": socket.gethostname(), "pid": os.getpid(),
        "queues": [queue_name], "group": "default", "concurrency": 7, "lease_ms": 20_000,
        "ttl_ms": 80_000, "handlers": ["send", "resize"], "handlers_left_out": 0,
        "handles_all": False, "supports": ["delayed", "repeatable", "events"],
    }  # fmt: skip
    assert 70_000 < await raw("PTTL", raw.keys.worker(consumer)) <= 80_000
    seen = await the_worker(inspector, queue_name)
    assert (seen.name, seen.record.lease_ms, seen.state(1)) == (consumer, 20_000, "alive")


async def test_one_handler_for_all_names_is_said_to_be_that(raw, running_worker):
    running = await running_worker(noop)

    found = await eventually(lambda: record_of(raw, running.worker.consumer_id))

    assert (found["handlers"], found["handles_all"]) == ([], True)


async def test_handlers_without_end_are_cut_off(raw, inspector, queue_name, running_worker):
    running = await running_worker({f"handler {at}": noop for at in range(5_000)})
    found = await eventually(lambda: record_of(raw, running.worker.consumer_id))

    assert (len(found["handlers"]), found["handlers_left_out"]) == (200, 4_800)
    assert not (await the_worker(inspector, queue_name)).record.lacks("handler 4999")


async def test_a_worker_that_stops_takes_its_record_along(raw, running_worker):
    running = await running_worker(noop)
    await eventually(lambda: record_of(raw, running.worker.consumer_id))

    await running.stop()

    assert await record_of(raw, running.worker.consumer_id) is None


@pytest.mark.parametrize(
    "consumer", ["a b{c}*?[x]\\:\n\t", "wörker-日本", "w" * 256, "returned-too", "}:worker:{"]
)
async def test_any_name_of_a_worker_has_a_record(inspector, queue_name, running_worker, consumer):
    await running_worker(noop, consumer_id=consumer)

    async def has_record():
        return (await the_worker(inspector, queue_name)).record

    await eventually(has_record)
    assert (await the_worker(inspector, queue_name)).name == consumer


async def launched(url, queue_name, tmp_path, **options) -> asyncio.subprocess.Process:
    told = {
        "url": url, "queue": queue_name, "journal": str(tmp_path / "journal"), "handler": "wait",
        "options": options,
    }  # fmt: skip
    program, paths = str(TESTS / "support/fault_worker.py"), [TESTS, TESTS.parent / "src"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, program, json.dumps(told), stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))},
    )  # fmt: skip
    try:
        assert await asyncio.wait_for(process.stdout.readline(), 60)
    except BaseException:
        process.kill()
        await process.communicate()
        raise
    return process


async def test_a_killed_worker_is_silent_and_after_its_lease_known_dead(
    url, queue, queue_name, inspector, tmp_path
):
    process = await launched(url, queue_name, tmp_path, claim_min_idle_ms=LEASE_MS, concurrency=1)
    await queue.add("n", 600)

    async def holds_it():
        found = await the_worker(inspector, queue_name)
        return found.record and found.pending == 1

    await eventually(holds_it)
    process.send_signal(signal.SIGKILL)
    await process.wait()
    killed_s = time.monotonic()

    states: list[str] = []

    async def is_dead():
        found = await the_worker(inspector, queue_name)
        # An hour would be assumed of one that says nothing.
        states.append(found.state(3_600_000))
        return states[-1] == "dead" and found

    found = await eventually(is_dead, within_s=30)
    dead_s = time.monotonic() - killed_s
    assert dead_s <= LEASE_MS / 1000 + 1 * patience()
    assert (found.pending, found.record.host) == (1, socket.gethostname())
    assert "silent" in states


async def test_a_record_that_somebody_deletes_is_made_again(raw, running_worker):
    running = await running_worker(noop, claim_min_idle_ms=1_000)
    consumer = running.worker.consumer_id
    await eventually(lambda: record_of(raw, consumer))

    await raw("DEL", raw.keys.worker(consumer))

    await eventually(lambda: record_of(raw, consumer))


async def test_a_blocked_event_loop_keeps_its_record(queue, raw, running_worker):
    started = asyncio.Event()

    async def blocks(job):
        started.set()
        time.sleep(4)  # noqa: ASYNC251  the point

    running = await running_worker(blocks, claim_min_idle_ms=1_000)
    consumer = running.worker.consumer_id
    await eventually(lambda: record_of(raw, consumer))
    before_ms = await raw("PTTL", raw.keys.worker(consumer))
    await queue.add("n", 1)
    await started.wait()

    assert await raw("PTTL", raw.keys.worker(consumer)) > before_ms - 2_000 * patience()


async def test_a_worker_without_the_right_to_its_key_works_and_warns_once(
    queue, raw, queue_name, url, caplog
):
    prefix = raw.keys.stream.removesuffix("stream")
    await raw("ACL", "SETUSER", queue_name, "on", ">pw", f"~{prefix}[^w]*", "+@all")
    parts = urlsplit(url)
    fenced_url = parts._replace(netloc=f"{queue_name}:pw@{parts.netloc}").geturl()
    seen = []

    async def handler(job):
        seen.append(job.data)

    with caplog.at_level(logging.WARNING, "chasquimq"):
        running = RunningWorker(
            Worker(queue_name, handler, redis_url=fenced_url, claim_min_idle_ms=1_000)
        )
        await running.until_consuming()
        await queue.add("n", 1)
        await eventually(lambda: seen == [1])
        await asyncio.sleep(2.5)
        await running.stop()

    warnings = [one.getMessage() for one in caplog.records if "its record" in one.getMessage()]
    assert len(warnings) == 1
    assert running.worker.consumer_id in warnings[0]
    await raw("ACL", "DELUSER", queue_name)


@pytest.mark.own_server
async def test_a_server_without_memory_costs_the_record_and_nothing_else(
    url, queue, raw, queue_name, running_worker, caplog
):
    seen = []

    async def handler(job):
        seen.append(job.data)

    async with Inspector(redis_url=url) as inspector:
        running = await running_worker(handler, claim_min_idle_ms=LEASE_MS)
        await queue.add_bulk([{"name": "n", "data": at} for at in range(10)])
        await eventually(lambda: record_of(raw, running.worker.consumer_id))
        await raw("CONFIG", "SET", "maxmemory", "1")
        await eventually(lambda: len(seen) == 10)
        await asyncio.sleep(LEASE_MS / 1000)

        # It is renewed by a command that needs no memory.
        assert (await the_worker(inspector, queue_name)).state(1) == "alive"
        assert running.worker.health().is_ok
        await raw("CONFIG", "SET", "maxmemory", "0")
        await running.stop()
    assert "its record" not in caplog.text


async def test_a_record_that_is_none_and_one_of_another_group_are_passed_over(
    inspector, queue_name, raw
):
    await raw("XGROUP", "CREATE", raw.keys.stream, "default", "0", "MKSTREAM")
    records = {"c-1": b"\xc1", "c-2": msgspec.msgpack.encode({"group": "other", "lease_ms": 9})}
    for name, record in records.items():
        await raw("XGROUP", "CREATECONSUMER", raw.keys.stream, "default", name)
        await raw("SET", raw.keys.worker(name), record, "PX", 60_000)
    await raw("XGROUP", "CREATECONSUMER", raw.keys.stream, "default", "c-3")
    await raw("RPUSH", raw.keys.worker("c-3"), "x")

    found = await inspector.workers(queue_name)

    assert [(one.name, one.record) for one in found] == [
        ("c-1", None),
        ("c-2", None),
        ("c-3", None),
    ]


async def test_a_newer_record_is_read_as_far_as_it_is_known(inspector, queue_name, raw):
    await raw("XGROUP", "CREATE", raw.keys.stream, "default", "0", "MKSTREAM")
    await raw("XGROUP", "CREATECONSUMER", raw.keys.stream, "default", "w")
    newer = {"group": "default", "lease_ms": 9_000, "ttl_ms": 69_000, "tasks": {"send": "2"}}
    await raw("SET", raw.keys.worker("w"), msgspec.msgpack.encode(newer), "PX", 64_000)

    (found,) = await inspector.workers(queue_name)

    assert (found.record.lease_ms, found.record.version) == (9_000, "")
    assert 5_000 <= found.record_age_ms < 15_000


async def test_jobs_that_were_given_back_wait_and_do_not_run(
    queue, queue_name, inspector, running_worker
):
    gate = asyncio.Event()

    async def blocks(job):
        await gate.wait()

    leaver = await running_worker(blocks, concurrency=1, read_count=30)
    await queue.add_bulk([{"name": "n", "data": at} for at in range(20)])
    await eventually(lambda: leaver.worker.health().waiting == 19)
    before = await queue.counts()
    await leaver.cut_short()
    gate.set()

    counts, snapshot = await queue.counts(), await inspector.snapshot(queue_name)

    assert (before.ready, before.running) == (0, 20)
    assert (counts.ready, counts.running) == (20, 0)
    assert (snapshot.ready, snapshot.pending, snapshot.parked) == (20, 0, 20)


async def test_a_record_that_cannot_be_made_stops_no_renewal(queue, running_worker):
    starts: list[str] = []

    async def lingers(job):
        starts.append(job.id)
        await asyncio.sleep(2)

    running = await running_worker({"odd\udc80": lingers, "n": lingers}, claim_min_idle_ms=600)
    await queue.add("n", None)

    await eventually(lambda: running.worker.health().completed == 1)
    assert len(starts) == 1
    assert running.worker.health().leases_lost == 0
