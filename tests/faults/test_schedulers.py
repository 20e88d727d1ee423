"""Schedulers killed, stopped, skewed and starved: each due time of a plan still becomes one job."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from chasquimq import MissedFiresPolicy, Queue, RepeatPattern
from chasquimq.engine.supervisor import Supervisor
from chasquimq.engine.upkeep import RepeatableScheduler
from chasquimq.settings import ConnectionSettings, UpkeepSettings
from chasquimq.store.inspect.queue import server_ms
from chasquimq.store.net.reconnect import ReconnectingConnection
from chasquimq.store.net.script import script
from chasquimq.store.repeatables import FiringStore
from support.clock_skew import DAY_S, skewed_environment
from support.faultproxy import LosesOneReply
from support.waiting import eventually, patience

PROGRAM = Path(__file__).with_name("scheduler_program.py")
SOURCES = Path(__file__).parents[2] / "src"
IS_BIG = os.environ.get("CHASQUI_TEST_BIG") == "1"
SPECS, CHAOS_S = (200, 30) if IS_BIG else (50, 12)
FAULT_EACH_S, STOP_S = 2.0, 3.0
CATCH_UP = MissedFiresPolicy.fire_all(1_000)


class SchedulerProcess:
    """One `scheduler_program.py`; its holder id tells whether it leads."""

    def __init__(self, url, queue, number, *, tick_ms=1_000, ttl_s=1, environ=None):
        self.holder = f"s-{number}"
        self.is_stopped = False
        options = {
            "url": url, "queue": queue, "holder": self.holder, "tick_ms": tick_ms, "ttl_s": ttl_s,
        }  # fmt: skip
        self._program = subprocess.Popen(
            [sys.executable, str(PROGRAM), json.dumps(options)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(SOURCES), **(environ or {})},
        )

    def until_ready(self) -> float:
        """Wait until it has begun; the answer is what its clock shows then."""
        return float(self._program.stdout.readline().split()[1])

    def freeze(self) -> None:
        self.is_stopped = True
        self._program.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.is_stopped = False
        self._program.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._program.kill()
        self._program.wait()
        self._program.stdout.close()


class Fleet:
    """Schedulers of one queue; those that are killed are replaced."""

    def __init__(self, url, queue):
        self._url = url
        self._queue = queue
        self._started = 0
        self._members: dict[str, SchedulerProcess] = {}
        self.kill_count = self.stop_count = 0

    def start(self, **options) -> SchedulerProcess:
        process = SchedulerProcess(self._url, self._queue, self._started, **options)
        self._started += 1
        self._members[process.holder] = process
        return process

    def leader(self, holder: bytes | None) -> SchedulerProcess | None:
        """Who holds the lock, if it is somebody who can still be hurt."""
        found = self._members.get((holder or b"").decode())
        return None if found is None or found.is_stopped else found

    def replace(self, process: SchedulerProcess) -> None:
        self.kill_count += 1
        del self._members[process.holder]
        process.kill()
        self.start()

    async def suspend(self, process: SchedulerProcess) -> None:
        """Stop it for longer than its lock lives, so that it wakes up as a former leader."""
        self.stop_count += 1
        process.freeze()
        await asyncio.sleep(STOP_S)
        process.thaw()

    def end(self) -> None:
        for process in self._members.values():
            process.kill()


@pytest.fixture
def fleet(url, queue_name):
    fleet = Fleet(url, queue_name)
    yield fleet
    fleet.end()


async def plan(queue, count, interval_ms, **options) -> dict[str, int]:
    """Plan that many jobs; the answer is each one's first due time."""
    pattern = RepeatPattern.every(interval_ms)
    for number in range(count):
        key = f"spec-{number}"
        await queue.upsert_repeatable_job(key, number, repeat=pattern, key=key, **options)
    return {meta.key: meta.next_fire_ms for meta in await queue.get_repeatable_jobs(count)}


async def fires(raw) -> list[tuple[str, int, int]]:
    """Name, due time and moment of every fire."""
    return [
        (fields[b"n"].decode(), int(fields[b"due"]), int(entry_id.split(b"-")[0]))
        for entry_id, fields in await raw.entries(raw.keys.stream)
    ]


async def hurt_leaders(fleet, raw, seconds) -> None:
    """Kill the leader or stop it, in turns, until the time is over."""
    suspensions = []
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        await asyncio.sleep(FAULT_EACH_S)
        leader = fleet.leader(await raw("GET", raw.keys.scheduler_lock))
        if leader is None:
            continue
        if fleet.kill_count <= fleet.stop_count:
            fleet.replace(leader)
        else:
            suspensions.append(asyncio.create_task(fleet.suspend(leader)))
    await asyncio.gather(*suspensions)


@pytest.mark.timeout(240)
async def test_each_due_time_becomes_one_job_whatever_happens_to_the_leader(
    queue, raw, fleet, kind
):
    for process in [fleet.start() for _ in range(3)]:
        process.until_ready()
    first_ms = await plan(queue, SPECS, 1_000, missed_fires=CATCH_UP)

    await hurt_leaders(fleet, raw, CHAOS_S)
    await eventually(lambda: has_caught_up(queue, raw), what="catching up")
    fleet.end()

    next_ms = {meta.key: meta.next_fire_ms for meta in await queue.get_repeatable_jobs(SPECS)}
    wanted = [
        (key, due_ms) for key in first_ms for due_ms in range(first_ms[key], next_ms[key], 1_000)
    ]
    found = await fires(raw)
    times = Counter((name, due_ms) for name, due_ms, _ in found)
    late_ms = sorted(at_ms - due_ms for _, due_ms, at_ms in found)
    print(
        f"{kind.label}: {len(wanted)} due times, {len(found)} jobs, {fleet.kill_count} kills, "
        f"{fleet.stop_count} stops, late p50 {late_ms[len(late_ms) // 2]} ms, "
        f"max {late_ms[-1]} ms, early {sum(ms < 0 for ms in late_ms)}"
    )
    assert fleet.kill_count >= 2
    assert fleet.stop_count >= 1
    assert times == Counter(wanted)
    assert late_ms[0] >= 0
    assert late_ms[-1] <= 7_000


async def has_caught_up(queue, raw) -> bool:
    now_ms = await server_ms(raw.connection)
    return all(meta.next_fire_ms > now_ms for meta in await queue.get_repeatable_jobs(SPECS))


@pytest.mark.parametrize("skew_s", [DAY_S, -DAY_S], ids=["a day ahead", "a day behind"])
async def test_a_scheduler_whose_clock_is_wrong_fires_by_the_servers(
    queue, raw, fleet, tmp_path, skew_s
):
    process = fleet.start(tick_ms=200, environ=skewed_environment(tmp_path, skew_s))
    shown_s = process.until_ready()
    first_ms = await plan(queue, 1, 200)

    await eventually(lambda: has_fired(raw, 8), what="eight fires")

    found = (await fires(raw))[:8]
    assert abs(shown_s - time.time() - skew_s) < 60
    assert [due_ms for _, due_ms, _ in found] == [first_ms["spec-0"] + n * 200 for n in range(8)]
    assert all(0 <= at_ms - due_ms < 1_000 * patience() for _, due_ms, at_ms in found)


async def has_fired(raw, count) -> bool:
    return await raw("XLEN", raw.keys.stream) >= count


# ── a server in trouble ──────────────────────────────────────────────────────────────────────


@pytest.fixture
async def supervised(url, queue_name):
    """A scheduler that is started again whatever ends it."""
    link = ReconnectingConnection(ConnectionSettings(url=url))
    scheduler = RepeatableScheduler(
        FiringStore(queue_name, link), UpkeepSettings(scheduler_tick_ms=100)
    )
    task = asyncio.create_task(Supervisor().keep(scheduler))
    yield scheduler
    scheduler.stop()
    task.cancel()
    await asyncio.wait([task])
    await link.close()


async def out_of_memory(raw):
    await raw("CONFIG", "SET", "maxmemory", "1")
    return lambda: raw("CONFIG", "SET", "maxmemory", "0")


async def stream_of_the_wrong_type(raw):
    await raw("DEL", raw.keys.stream)
    await raw("SET", raw.keys.stream, "text")
    return lambda: raw("DEL", raw.keys.stream)


async def lock_of_the_wrong_type(raw):
    await raw("DEL", raw.keys.scheduler_lock)
    await raw("LPUSH", raw.keys.scheduler_lock, "text")
    return lambda: raw("DEL", raw.keys.scheduler_lock)


async def repeat_set_of_the_wrong_type(raw):
    await raw("RENAME", raw.keys.repeat, raw.keys.repeat + ":kept")
    await raw("SET", raw.keys.repeat, "text")
    return lambda: raw("RENAME", raw.keys.repeat + ":kept", raw.keys.repeat)


@pytest.mark.own_server
@pytest.mark.parametrize(
    "hurt",
    [
        out_of_memory,
        stream_of_the_wrong_type,
        lock_of_the_wrong_type,
        repeat_set_of_the_wrong_type,
    ],
)
async def test_after_trouble_on_the_server_firing_goes_on_and_nothing_is_doubled(
    queue, raw, supervised, hurt
):
    first_ms = await plan(queue, 3, 100, missed_fires=CATCH_UP)
    await eventually(lambda: supervised.fired_count > 3)
    earlier = await fires(raw)

    heal = await hurt(raw)
    await asyncio.sleep(1)
    await heal()
    healed_ms = await server_ms(raw.connection)
    await eventually(lambda: fires_after(raw, healed_ms), within_s=3)

    times = Counter((name, due_ms) for name, due_ms, _ in {*earlier, *await fires(raw)})
    assert set(times.values()) == {1}
    for key, first in first_ms.items():
        mine = sorted(due_ms for name, due_ms in times if name == key)
        assert mine == list(range(first, mine[-1] + 1, 100))


async def fires_after(raw, moment_ms):
    return [due_ms for _, due_ms, _ in await fires(raw) if due_ms > moment_ms]


@pytest.mark.own_server
async def test_forgotten_scripts_are_sent_again(queue, raw, supervised):
    await plan(queue, 3, 100)
    await eventually(lambda: supervised.fired_count > 3)

    await raw("SCRIPT", "FLUSH")
    before = supervised.fired_count

    await eventually(lambda: supervised.fired_count > before + 6, within_s=3)


@pytest.mark.own_server
async def test_after_everything_was_flushed_new_plans_fire(queue, raw, supervised):
    await plan(queue, 3, 100)
    await eventually(lambda: supervised.fired_count > 3)

    await raw("FLUSHALL")
    await plan(queue, 2, 100)
    before = supervised.fired_count

    await eventually(lambda: supervised.fired_count > before + 4, within_s=3)


# ── lost replies ─────────────────────────────────────────────────────────────────────────────


@pytest.fixture
async def proxy(url):
    async with LosesOneReply(url) as proxy:
        yield proxy


@pytest.fixture
async def shaky_queue(proxy, queue_name):
    async with Queue(queue_name, redis_url=proxy.url) as queue:
        yield queue


async def test_a_removal_whose_reply_was_lost_still_says_that_it_removed(shaky_queue, proxy):
    pattern = RepeatPattern.every(60_000)
    await shaky_queue.upsert_repeatable_job("mail", 1, repeat=pattern, key="k")
    await shaky_queue.remove_repeatable_by_key("another")
    proxy.lost = script("remove_repeatable").sha.encode()

    assert await shaky_queue.remove_repeatable_by_key("k") is True
    assert proxy.lost is None


async def test_an_upsert_whose_reply_was_lost_still_says_that_it_wrote(shaky_queue, proxy, raw):
    pattern = RepeatPattern.every(60_000)
    await shaky_queue.upsert_repeatable_job("mail", 1, repeat=pattern, key="k")
    proxy.lost = b"mail-two"

    job = await shaky_queue.upsert_repeatable_job("mail", "mail-two", repeat=pattern, key="k")

    assert proxy.lost is None
    assert job.is_duplicate is False
    assert b"mail-two" in await raw("HGET", raw.keys.repeat_spec("k"), "spec")


async def test_a_fire_whose_reply_was_lost_is_not_repeated(proxy, queue, queue_name, raw):
    await plan(queue, 1, 100, missed_fires=CATCH_UP)
    link = ReconnectingConnection(ConnectionSettings(url=proxy.url))
    scheduler = RepeatableScheduler(
        FiringStore(queue_name, link), UpkeepSettings(scheduler_tick_ms=100)
    )
    task = asyncio.create_task(Supervisor().keep(scheduler))
    await eventually(lambda: scheduler.fired_count > 2)

    proxy.lost = script("fire").sha.encode()
    await eventually(lambda: proxy.lost is None)
    before = scheduler.fired_count
    await eventually(lambda: scheduler.fired_count > before + 3)
    scheduler.stop()
    await task
    await link.close()

    found = [due_ms for _, due_ms, _ in await fires(raw)]
    assert found == list(range(found[0], found[-1] + 1, 100))
    assert scheduler.fired_count == len(found) - 1
