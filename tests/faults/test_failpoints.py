"""A worker that dies at each point of its path in turn: what it held is done by the next one."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

import pytest

from chasquimq import Queue, RepeatPattern, Worker
from chasquimq.errors import SettingsError
from chasquimq.testing.failpoints import ACTS, EXIT_CODE, HANDLER_END, POINTS, Failpoint
from support import fault_worker
from support.journal import START, read_journals
from support.processes import WorkerFleet
from support.raw import Raw
from support.trial import Trial
from support.waiting import eventually

SOURCES = Path(__file__).parents[2] / "src"
LEASE_MS = 600
FIRES = 3
# Enough jobs for one at a time that some wait so long that they are charged anew.
JOBS = ["completes"] * 30 + ["lingers", "fails once", "fails once", "gives up", "gives up"]
BACKOFF = {"kind": "fixed", "delay_ms": 20, "jitter_ms": 0}
NO_WAIT = BACKOFF | {"delay_ms": 0}
OPTIONS = {"concurrency": 1, "read_count": 64, "claim_min_idle_ms": LEASE_MS}
# An act that a worker does only when it is set up for it.
OPTIONS_OF = {
    "claim": {"abilities": {"claim_on_read": False}},
    "complete": {"store_results": True},
    "retry at once": {"events": "terminal"},
}


class Stage:
    """A queue of its own with jobs of every kind, and one worker that is to die on it."""

    def __init__(self, url: str, name: str, folder: Path) -> None:
        folder.mkdir()
        self._url = url
        self._name = name
        self._folder = folder
        self.fleet = WorkerFleet(url, name, folder)

    async def __aenter__(self) -> Self:
        self._queue = Queue(self._name, redis_url=self._url)
        self.raw = await Raw.open(self._url, self._name)
        self.trial = Trial(self._queue, self._url, self._folder)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.fleet.close()
        self.trial.close()
        await self.raw.close()
        await self._queue.close()

    async def fill(self, backoff=BACKOFF) -> None:
        jobs = [{"name": "n", "data": fate, "backoff": backoff} for fate in JOBS]
        await self.trial.add_bulk([*jobs, *(job | {"delay_ms": 50} for job in jobs[-3:])])
        every = RepeatPattern.every(100)
        await self._queue.upsert_repeatable_job("tick", "completes", repeat=every, limit=FIRES)

    def launch(self, act: str, failpoint: str):
        options = OPTIONS | OPTIONS_OF.get(act, {})
        return self.fleet.launch("fated", failpoint=failpoint, **options)

    async def let_die(self, victim) -> int:
        """Wait for its end; whoever held a lock with it must not hold up the next."""
        await self.fleet.until_dead(victim)
        await self.raw("DEL", self.raw.keys.promoter_lock, self.raw.keys.scheduler_lock)
        return victim.exit_code

    async def until_started(self) -> None:
        await eventually(lambda: [one for one in self._lines() if one.event == START])

    async def finish(self) -> None:
        """Let another worker do the rest."""
        handler = self.trial.watched(fault_worker.fated.__wrapped__)
        worker = Worker(
            self._name, handler, redis_url=self._url, claim_min_idle_ms=LEASE_MS,
            scheduler_tick_ms=50,
        )  # fmt: skip
        running = asyncio.ensure_future(worker.run())
        await eventually(self.has_fired, within_s=20, what="the last fire of the plan")
        await self.trial.drain()
        await worker.close()
        await running

    async def verdict(self):
        return await self.trial.verdict(more_faults=self.fleet.faults)

    async def fired(self) -> int:
        """How many jobs the plan has become: they are those that nobody added."""
        added = set(self.trial.acknowledged)
        return len({one.job_id for one in self._lines() if one.job_id} - added)

    async def has_fired(self) -> bool:
        return not await self.raw("EXISTS", self.raw.keys.repeat)

    def _lines(self):
        return read_journals(self._folder)


@pytest.fixture
def stage(url, queue_name, tmp_path):
    return lambda part: Stage(url, f"{queue_name}-{part}", tmp_path / part)


@pytest.mark.parametrize("act", [*ACTS, "handler"])
async def test_a_death_at_any_point_of_an_act_loses_nothing_and_doubles_nothing(stage, act, kind):
    points = [point for point in POINTS if f"_{act}_" in point]

    verdicts = await asyncio.gather(*(death_at(stage(point), act, point) for point in points))

    assert points
    for point, verdict, fired in verdicts:
        print(f"{kind.label}, {point}: {verdict.line}")
        verdict.demand()
        assert fired == FIRES


async def test_a_death_around_a_retry_without_a_wait_loses_nothing_and_doubles_nothing(stage, kind):
    points = [point for point in POINTS if "_retry_" in point]

    deaths = [death_at(stage(point), "retry at once", point, NO_WAIT) for point in points]
    verdicts = await asyncio.gather(*deaths)

    assert points
    for point, verdict, _ in verdicts:
        print(f"{kind.label}, {point}, at once: {verdict.line}")
        verdict.demand()


async def death_at(stage, act, point, backoff=BACKOFF):
    async with stage:
        await stage.fill(backoff)
        victim = stage.launch(act, f"{point}:1:exit")
        if act == "hand_back":
            await stage.until_started()
            victim.signal(signal.SIGTERM)
        assert await stage.let_die(victim) == EXIT_CODE
        await stage.finish()
        return point, await stage.verdict(), await stage.fired()


@pytest.mark.parametrize("act", ["ack", "retry", "bury", "promote", "charge", "history"])
async def test_a_reply_that_is_lost_once_costs_no_second_run(stage, act):
    async with stage("lost") as here:
        await here.fill()
        worker = here.launch(act, f"after_{act}_sent:1:raise")
        await eventually(here.has_fired, within_s=20)
        await here.trial.drain()
        await here.fleet.stop(worker)

        verdict = await here.verdict()
        verdict.demand()
        assert verdict.figures["extra_starts"] == 0
        assert await here.fired() == FIRES


async def test_a_lost_reply_to_a_retry_without_a_wait_costs_no_second_run(stage):
    async with stage("lost") as here:
        await here.fill(NO_WAIT)
        worker = here.launch("retry at once", "after_retry_sent:1:raise")
        await eventually(here.has_fired, within_s=20)
        await here.trial.drain()
        await here.fleet.stop(worker)

        verdict = await here.verdict()
        verdict.demand()
        assert verdict.figures["extra_starts"] == 0


async def test_a_worker_that_stands_still_before_its_ack_completes_its_job_once(stage):
    async with stage("still") as here:
        await here.fill()
        worker = here.launch("ack", f"{HANDLER_END}:1:sleep:{LEASE_MS * 2 / 1000}")
        await here.until_started()
        await eventually(here.has_fired, within_s=20)
        await here.trial.drain()
        await here.fleet.stop(worker)

        verdict = await here.verdict()
        verdict.demand()
        assert verdict.figures["extra_starts"] == 0


# ── off ──────────────────────────────────────────────────────────────────────────────────────

LOOK = """
import asyncio, sys
from chasquimq import Queue, Worker
from chasquimq.engine.settlement import SettleLoop
from chasquimq.store.net.blocking import BlockingConnection
from chasquimq.store.net.connection import Connection
from chasquimq.store.consumer.store import ConsumerStore

async def noop(job): pass

async def main(url, name):
    async with Queue(name, redis_url=url) as queue:
        await queue.add("n", 1)
        await Worker(name, noop, redis_url=url).run_until_idle()

asyncio.run(main(*sys.argv[1:]))
parts = [Connection.send, BlockingConnection._receive, ConsumerStore.ack, SettleLoop.put]
print("chasquimq.testing" in sys.modules, [hasattr(one, "__wrapped__") for one in parts])
"""
HANDLE = """
async def handle(job): pass
"""


def run(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], text=True, capture_output=True, timeout=50, cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(SOURCES)}, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "said"),
    [((), "False [False, False, False, False]"),
     (("-m", "chasquimq.testing.failpoints", "before_bury_sent:1:exit"),
      "True [True, True, True, True]")],
    ids=["off", "on"],
)  # fmt: skip
def test_a_worker_of_its_own_loads_and_wraps_not_one_line_of_it(
    url, queue_name, tmp_path, words, said
):
    (tmp_path / "look.py").write_text(LOOK)

    done = run(*words, "look.py", url, queue_name, cwd=tmp_path)

    assert done.stdout.strip() == said, done.stderr


async def test_the_command_of_a_worker_dies_at_a_failpoint(url, queue_name, tmp_path):
    (tmp_path / "app.py").write_text(HANDLE)
    async with Queue(queue_name, redis_url=url) as queue:
        await queue.add("n", 1)

    worker = ("-m", "chasquimq", "worker", "app:handle", "--queue", queue_name, "--redis-url", url)
    trap = ("-m", "chasquimq.testing.failpoints", "before_ack_sent:1:exit")
    done = await asyncio.to_thread(run, *trap, *worker, cwd=tmp_path)

    assert done.returncode == EXIT_CODE, done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [(("nowhere:1:exit", "app.py"), "error: failpoint must be point:passing:exit"),
     ((), "error: failpoint must be point:passing:exit"),
     (("before_ack_sent:1:exit",), "error: program must be a program behind the failpoint"),
     (("before_ack_sent:1:exit", "-m"), "error: program must be a program behind the failpoint")],
)  # fmt: skip
def test_a_command_line_that_lacks_a_part_is_wrong_usage(tmp_path, words, said):
    done = run("-m", "chasquimq.testing.failpoints", *words, cwd=tmp_path)

    assert done.returncode == 2
    assert done.stderr.startswith(said)
    assert "usage: python -m chasquimq.testing.failpoints" in done.stderr


@pytest.mark.parametrize(
    "text",
    ["", "nowhere:1:exit", "after_ack_sent", "after_ack_sent:x:exit", "after_ack_sent:1:burn",
     f"{HANDLER_END}:1:raise"],
)  # fmt: skip
def test_a_failpoint_that_means_nothing_is_refused_and_the_points_are_named(text):
    with pytest.raises(SettingsError, match="after_ack_sent"):
        Failpoint.read(text)
