"""Delayed jobs become ready where no worker runs."""

import asyncio
import os

from chasquimq import Queue, Upkeep
from chasquimq.server import SessionServer

QUEUE = "example-upkeep"


async def main(url: str) -> None:
    # region upkeep
    upkeep = Upkeep(QUEUE, redis_url=url)
    running = asyncio.create_task(upkeep.run())
    # endregion
    async with Queue(QUEUE, redis_url=url) as queue:
        await queue.add("wake", None, delay_ms=200)
        print(f"delayed: {(await queue.counts()).delayed}")
        while (await queue.counts()).delayed:  # noqa: ASYNC110 - no event reports an empty set
            await asyncio.sleep(0.05)
        print(f"ready: {(await queue.counts()).ready}")
    # region close
    await upkeep.close()
    await running
    # endregion


if __name__ == "__main__":
    server = SessionServer()  # started only when CHASQUI_REDIS_URL names none
    asyncio.run(main(os.environ.get("CHASQUI_REDIS_URL") or server.start().url))
    server.stop()
