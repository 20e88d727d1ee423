"""One of many processes that add the same ids; its journal says which it was told to be its own.

`python racer.py '{"url": …, "queue": …, "journal": …, "seed": …, "ids": …, "bulk": …}'` prints
`ready`, waits for a line, and adds every id once, in an order of its own.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from typing import Any

from chasquimq import Queue
from support.journal import ADD_CALL, ADD_OK, Journal


async def race(settings: dict[str, Any]) -> None:
    journal, dice = Journal(settings["journal"]), random.Random(settings["seed"])
    ids = [f"job-{at}" for at in range(settings["ids"])]
    dice.shuffle(ids)
    async with Queue(settings["queue"], redis_url=settings["url"]) as queue:
        await queue.counts()
        print("ready", flush=True)
        sys.stdin.readline()
        for at in range(0, len(ids), settings["bulk"]):
            await add(queue, journal, ids[at : at + settings["bulk"]], at % 2 == 0)


async def add(queue: Queue, journal: Journal, ids: list[str], is_bulk: bool) -> None:
    """Add ids in one call, or in many at the same time."""
    for job_id in ids:
        journal.note(ADD_CALL, job_id)
    if is_bulk:
        jobs = await queue.add_bulk([{"name": "n", "data": one, "job_id": one} for one in ids])
    else:
        jobs = await asyncio.gather(*(queue.add("n", one, job_id=one) for one in ids))
    for job in jobs:
        if not job.is_duplicate:
            journal.note(ADD_OK, job.id)


if __name__ == "__main__":
    asyncio.run(race(json.loads(sys.argv[1])))
