"""Workers whose handlers fail, and producers of jobs to come, each in a process of its own.

`python failing_worker.py '{…}'` takes what `fault_worker.py` takes; with the handler `produce`
it adds the delayed jobs that `options` describe, prints `ready` and leaves.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

from chasquimq import Job, Queue
from support import fault_worker
from support.fault_worker import noted
from support.journal import ADD_OK, Journal
from support.processes import WorkerFleet, WorkerProcess


class FailingProcess(WorkerProcess):
    """One `failing_worker.py`."""

    program = Path(__file__)


class FailingFleet(WorkerFleet):
    """Starts processes that share a queue and a folder of journals."""

    process = FailingProcess


@noted
async def always_fails(job: Job) -> None:
    await asyncio.sleep(random.uniform(0.005, 0.030))
    raise ValueError("always")


@noted
async def fails_once(job: Job) -> None:
    """Fails its first run if it was asked to; its due time and our clock go to the journal."""
    fault_worker.journal.note("due", job.id, job.delivery.due_ms or 0)
    fault_worker.journal.note("ran", job.id, _own_clock_ms())
    if job.data["retry_ms"] and job.attempt == 0:
        raise ValueError("once")


async def produce(settings: dict[str, Any]) -> None:
    """Add delayed jobs in bulks; the journal says when, and with which delay."""
    options, journal = settings["options"], fault_worker.journal
    dice = random.Random(options["seed"])
    async with Queue(settings["queue"], redis_url=settings["url"]) as queue:
        for _ in range(options["count"] // options["bulk"]):
            jobs = [_delayed_job(dice, options) for _ in range(options["bulk"])]
            journal.note("adding")
            for job, spec in zip(await queue.add_bulk(jobs), jobs, strict=True):
                journal.note("added", job.id, spec["delay_ms"])
                journal.note(ADD_OK, job.id)
            journal.note("produced", "", _own_clock_ms())
            await asyncio.sleep(options["pause_s"])
    print("ready", flush=True)


def _delayed_job(dice: random.Random, options: dict[str, Any]) -> dict[str, Any]:
    retry_ms = dice.randrange(200, 1_000) if dice.random() < options["retry_share"] else 0
    spec = {
        "name": "later", "data": {"retry_ms": retry_ms},
        "delay_ms": dice.randrange(*options["delay_ms"]),
    }  # fmt: skip
    if retry_ms:
        spec["backoff"] = {"kind": "fixed", "delay_ms": retry_ms, "jitter_ms": 0}
    return spec


def _own_clock_ms() -> int:
    return time.time_ns() // 1_000_000


def main() -> None:
    settings = json.loads(sys.argv[1])
    fault_worker.journal = Journal(settings["journal"])
    if settings["handler"] == "produce":
        asyncio.run(produce(settings))
        return
    fault_worker.die_with_parent()
    fault_worker.watch_stalls()
    vars(fault_worker).update(always_fails=always_fails, fails_once=fails_once)
    fault_worker.worker_run(settings)


if __name__ == "__main__":
    main()
