"""Where is my job? Ask by its id, at any time of its life."""

import asyncio
import os

from chasquimq import Job, Queue, UnrecoverableError, Worker
from chasquimq.server import SessionServer

QUEUE = "example-find"


async def ship(job: Job) -> None:
    if job.data["to"] == "nowhere":
        raise UnrecoverableError("no such place")


async def main(url: str) -> None:
    async with Queue(QUEUE, redis_url=url) as queue:
        # region find
        first = await queue.add("ship", {"to": "Lima"})
        print((await queue.get_job(first.id)).state)
        # endregion
        later = await queue.add("ship", {"to": "Cusco"}, delay_ms=3_600_000)
        lost = await queue.add("ship", {"to": "nowhere"})
        print((await queue.get_job(later.id)).state)
        await Worker(QUEUE, ship, redis_url=url, store_results=True).run_until_idle()
        print((await queue.get_job(first.id)).state)
        # region dead
        found = await queue.get_job(lost.id)
        print(f"{found.state}: {found.reason}, {found.error}")
        # endregion
        # region counts
        counts = await queue.counts()
        print(f"ready {counts.ready}, running {counts.running}, delayed {counts.delayed}")
        # endregion


if __name__ == "__main__":
    server = SessionServer()  # started only when CHASQUI_REDIS_URL names none
    asyncio.run(main(os.environ.get("CHASQUI_REDIS_URL") or server.start().url))
    server.stop()
