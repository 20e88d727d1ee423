"""Jobs that wait for their time, and one that is taken back before it comes."""

import asyncio
import os
from datetime import UTC, datetime, timedelta

from chasquimq import Job, Queue, Worker
from chasquimq.server import SessionServer

QUEUE = "example-delayed"


async def remind(job: Job) -> None:
    print(f"remember: {job.data['text']}")


async def main(url: str) -> None:
    async with Queue(QUEUE, redis_url=url) as queue:
        # region add
        await queue.add("remind", {"text": "the bread"}, delay_ms=400)
        await queue.add("remind", {"text": "the tea"}, delay=timedelta(seconds=0.1))
        soon = datetime.now(UTC) + timedelta(seconds=0.25)
        await queue.add("remind", {"text": "the eggs"}, delay_ms=soon)
        # endregion
        # region cancel
        job = await queue.add("remind", {"text": "the cake"}, delay=timedelta(hours=1))
        print(f"cancelled: {await queue.cancel_delayed(job.id)}")
        print(f"cancelled again: {await queue.cancel_delayed(job.id)}")
        # endregion
        # region cancel_where
        for day in range(1, 4):
            await queue.add("water", {"text": "the plants"}, delay=timedelta(days=day))
        soon = datetime.now(UTC) + timedelta(days=2, hours=1)
        asked = await queue.cancel_delayed_where(name="water", due_before=soon, dry_run=True)
        print(f"would cancel {asked.matched}, first {asked.sample[0].name}")
        print(f"cancelled: {await queue.cancel_delayed_where(name='water', due_before=soon)}")
        # endregion
        await queue.cancel_delayed_where(name="water")
    await Worker(QUEUE, remind, redis_url=url, concurrency=1).run_until_idle()


if __name__ == "__main__":
    server = SessionServer()  # started only when CHASQUI_REDIS_URL names none
    asyncio.run(main(os.environ.get("CHASQUI_REDIS_URL") or server.start().url))
    server.stop()
