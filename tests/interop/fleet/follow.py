"""Reads so many events with whichever package this interpreter has; answers in JSON.

`follow.py <url> <queue> <count>`
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

from chasquimq import QueueEvents

URL, QUEUE, COUNT = sys.argv[1:4]


async def main() -> None:
    seen: list = []
    async with asyncio.timeout(20):
        async for event in QueueEvents(QUEUE, redis_url=URL, last_event_id="0", block_ms=200):
            seen.append([event.name, event.job_id, event.job_name, event.fields])
            if len(seen) == int(COUNT):
                break
    print(json.dumps(seen), flush=True)
    os._exit(0)


asyncio.run(main())
