"""Many processes add the same ids, some are killed, some hear no answer: one job for each id."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from chasquimq.errors import IdConflict
from support import fault_worker
from support.faultproxy import FaultProxy
from support.journal import ADD_CALL, ADD_OK, read_journals
from support.places import look
from support.waiting import eventually

IS_BIG = os.environ.get("CHASQUI_TEST_BIG") == "1"
IDS = 100_000 if IS_BIG else 1_000
RACERS, VICTIMS, UNHEARD = 8, 3, 2
LOST_REPLIES = 3
SEED = int(os.environ.get("CHASQUI_TEST_SEED", "11"))
TESTS = Path(__file__).parents[1]
PROGRAM = TESTS / "support" / "racer.py"


class Racers:
    """Processes that stand ready and begin together."""

    def __init__(self, folder: Path, queue: str, urls: list[str]) -> None:
        self._folder = folder
        self._queue = queue
        self.processes = [self._start(url, seed) for seed, url in enumerate(urls)]

    def begin(self) -> None:
        for process in self.processes:
            process.stdout.readline()
        for process in self.processes:
            process.stdin.write(b"go\n")
            process.stdin.flush()

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()

    def _start(self, url: str, seed: int) -> subprocess.Popen:
        settings = {
            "url": url, "queue": self._queue, "seed": seed, "ids": IDS, "bulk": 20,
            "journal": str(self._folder / f"racer-{seed}.journal"),
        }  # fmt: skip
        return subprocess.Popen(
            [sys.executable, str(PROGRAM), json.dumps(settings)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": f"{TESTS.parent / 'src'}{os.pathsep}{TESTS}"},
        )  # fmt: skip


@pytest.fixture
async def proxy(url):
    async with FaultProxy(url) as proxy:
        yield proxy


@pytest.fixture
def racers(url, proxy, queue_name, tmp_path):
    urls = [proxy.url] * UNHEARD + [url] * (RACERS - UNHEARD)
    racers = Racers(tmp_path, queue_name, urls)
    yield racers
    racers.close()


@pytest.mark.timeout(900 if IS_BIG else 120)
async def test_racers_that_die_or_hear_nothing_add_each_id_once(
    racers, proxy, trial, raw, queue_name, running_worker, tmp_path, kind
):
    trial.seed, dice = SEED, random.Random(SEED)
    await asyncio.to_thread(racers.begin)
    proxy.lose_replies(1.0, [b"EVALSHA", b"EVAL\r\n"], seed=SEED)
    victims = dice.sample(racers.processes[UNHEARD:], VICTIMS)
    for victim in victims:
        await asyncio.sleep(dice.uniform(0.0, 0.03))
        victim.kill()
    await eventually(lambda: proxy.lost_count >= LOST_REPLIES, within_s=20)
    proxy.calm()
    others = [one for one in racers.processes if one not in victims]
    await eventually(lambda: all(one.poll() is not None for one in others), within_s=500)

    places = await look(raw)
    lines = read_journals(tmp_path)
    owners = Counter(line.job_id for line in lines if line.event == ADD_OK)
    asked = {line.job_id for line in lines if line.event == ADD_CALL}
    await running_worker(trial.watched(fault_worker.noop), concurrency=50)
    await trial.drain(within_s=200)
    verdict = await trial.verdict()
    print(
        f"{kind.label}: {len(owners)} of {IDS} ids were told to somebody, {VICTIMS} racers killed, "
        f"{proxy.lost_count} replies lost; {verdict.line}"
    )
    verdict.demand()
    assert {one.returncode for one in others} == {0}
    assert asked == {f"job-{at}" for at in range(IDS)}
    assert Counter(places.ready) == dict.fromkeys(asked, 1)
    assert max(owners.values()) == 1
    # Whom nobody was told to own was added by a racer that died before it heard.
    assert IDS - len(owners) <= VICTIMS * 20
    with pytest.raises(IdConflict):
        await trial.queue.add("n", "another body", job_id="job-0", on_conflict="raise")
