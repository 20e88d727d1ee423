"""SIGTERM to a real process: it leaves in time, whatever its handlers and its server do."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from chasquimq.store.inspect.queue import Counts
from support.journal import END_OK, START, read_journals
from support.waiting import eventually, patience

DEADLINE_S = 3.0
OPTIONS = {"concurrency": 1, "read_count": 64, "shutdown_deadline_ms": int(DEADLINE_S * 1000)}


async def test_a_stopped_worker_hands_its_prefetch_over_and_leaves_in_time(
    trial, raw, fleet, tmp_path, kind
):
    leaver = await fleet.start("wait", **OPTIONS)
    await trial.add_bulk([{"name": "n", "data": 1.0} for _ in range(64)])
    await eventually(lambda: is_held(raw, 64))
    heir = await fleet.start("wait", concurrency=64)

    asked_s = leaver.signal(signal.SIGTERM)
    exited_s = await leaver.until_exit()
    await trial.drain(within_s=10)
    heir.signal(signal.SIGTERM)
    await heir.until_exit()

    verdict = await trial.verdict()
    starts = [line for line in read_journals(tmp_path) if line.event == START]
    taken = [line for line in starts if line.pid == heir.pid]
    latest_s = max(line.t_s for line in taken) - asked_s
    print(
        f"{kind.label}: exit {exited_s - asked_s:.2f} s, last take-over {latest_s:.2f} s; "
        f"{verdict.line}"
    )
    verdict.demand()
    assert exited_s - asked_s <= DEADLINE_S + patience()
    assert latest_s <= 1.5 * patience()
    assert len(taken) >= 55
    assert {line.attempt for line in starts} == {0}
    assert verdict.figures["extra_starts"] == 0
    assert set(await raw.consumers()) <= {"returned"}


async def test_a_second_signal_hands_back_what_runs(queue, raw, fleet, tmp_path):
    leaver = await fleet.start("wait", concurrency=4)
    await queue.add_bulk([{"name": "n", "data": 30} for _ in range(4)])
    await eventually(lambda: count_of(tmp_path, START) == 4)

    leaver.signal(signal.SIGTERM)
    await asyncio.sleep(0.1)
    asked_s = leaver.signal(signal.SIGINT)
    exited_s = await leaver.until_exit()

    assert exited_s - asked_s <= patience()
    assert [(row[1], row[3]) for row in await raw.pending()] == [(b"returned", 1)] * 4
    assert await raw.consumers() == ["returned"]


async def test_handlers_that_ignore_their_cancel_do_not_delay_the_exit(queue, raw, fleet, tmp_path):
    leaver = await fleet.start("stubborn", concurrency=2, shutdown_deadline_ms=500)
    await queue.add_bulk([{"name": "n", "data": 30} for _ in range(2)])
    await eventually(lambda: is_held(raw, 2))

    asked_s = leaver.signal(signal.SIGTERM)
    exited_s = await leaver.until_exit()

    assert exited_s - asked_s <= 0.5 + patience()
    assert "ignored_cancel" in {line.event for line in read_journals(tmp_path)}
    assert len(await raw.pending()) == 2


async def test_a_busy_thread_does_not_delay_the_exit(queue, raw, fleet):
    leaver = await fleet.start("wait_in_thread", concurrency=2, shutdown_deadline_ms=500)
    await queue.add_bulk([{"name": "n", "data": 30} for _ in range(2)])
    await eventually(lambda: is_held(raw, 2))

    asked_s = leaver.signal(signal.SIGTERM)
    exited_s = await leaver.until_exit()

    assert exited_s - asked_s <= 0.5 + patience()


@pytest.mark.own_server(aof="always")
async def test_a_server_that_is_gone_does_not_delay_the_exit(server, queue, raw, fleet):
    leaver = await fleet.start("wait", concurrency=1, read_count=8, shutdown_deadline_ms=1000)
    await queue.add_bulk([{"name": "n", "data": 30} for _ in range(8)])
    await eventually(lambda: is_held(raw, 8))
    server.kill()

    asked_s = leaver.signal(signal.SIGTERM)
    exited_s = await leaver.until_exit()

    assert exited_s - asked_s <= 1.0 + patience()


@pytest.mark.own_server(aof="always")
async def test_a_server_that_does_not_answer_does_not_delay_the_exit(server, queue, raw, fleet):
    leaver = await fleet.start("wait", concurrency=1, read_count=8, shutdown_deadline_ms=1000)
    await queue.add_bulk([{"name": "n", "data": 30} for _ in range(8)])
    await eventually(lambda: is_held(raw, 8))
    os.kill(server.pid, signal.SIGSTOP)
    try:
        asked_s = leaver.signal(signal.SIGTERM)
        exited_s = await leaver.until_exit()
    finally:
        os.kill(server.pid, signal.SIGCONT)

    assert exited_s - asked_s <= 1.0 + patience()


@pytest.mark.own_server(aof="always")
async def test_an_idle_worker_of_a_dead_server_leaves_long_before_its_deadline(server, fleet):
    leaver = await fleet.start("wait", shutdown_deadline_ms=20_000)
    server.kill()
    await asyncio.sleep(1)

    asked_s = leaver.signal(signal.SIGTERM)
    exited_s = await leaver.until_exit()

    assert exited_s - asked_s <= 3 * patience()


@pytest.mark.own_server(aof="always")
async def test_a_second_signal_does_not_wait_for_a_server_that_is_gone(server, queue, raw, fleet):
    leaver = await fleet.start("wait", concurrency=1, read_count=8)
    await queue.add_bulk([{"name": "n", "data": 30} for _ in range(8)])
    await eventually(lambda: is_held(raw, 8))
    server.kill()
    await asyncio.sleep(0.5)
    leaver.signal(signal.SIGTERM)
    await asyncio.sleep(0.5)

    asked_s = leaver.signal(signal.SIGTERM)
    exited_s = await leaver.until_exit()

    assert exited_s - asked_s <= patience()


@pytest.mark.own_server(aof="always")
async def test_what_ended_during_an_outage_is_acknowledged_before_the_exit(
    server, queue, raw, fleet, tmp_path
):
    leaver = await fleet.start("wait", shutdown_deadline_ms=10_000)
    await queue.add_bulk([{"name": "n", "data": 0.5} for _ in range(3)])
    await eventually(lambda: count_of(tmp_path, START) == 3)
    server.kill()
    await eventually(lambda: count_of(tmp_path, END_OK) == 3)
    leaver.signal(signal.SIGTERM)
    await asyncio.sleep(1.0)
    await asyncio.to_thread(server.start)

    await leaver.until_exit()

    assert await queue.counts() == Counts()


def count_of(folder, event):
    return sum(line.event == event for line in read_journals(folder))


async def is_held(raw, count):
    return len(await raw.pending()) == count
