"""Follow what happens on a queue, from another place than the worker."""

import asyncio
import os

from chasquimq import Job, Queue, QueueEvent, QueueEvents, Worker
from chasquimq.server import SessionServer

QUEUE = "example-events"


async def charge(job: Job) -> None:
    if job.run_number == 1:
        raise TimeoutError("the bank did not answer")


# region follow
async def follow(url: str) -> None:
    async with QueueEvents(QUEUE, redis_url=url, last_event_id="0") as events:
        async for event in events:
            if event.job_id is not None:
                print(f"{event.name}: {event.job_name}, attempt {event.attempt}")
            if event.name == "completed":
                return


# endregion


# region callbacks
def alarm(event: QueueEvent) -> None:
    print(f"run {event.attempt} failed: {event.fields['ec']}, {event.reason}")


async def listen(url: str) -> None:
    events = QueueEvents(QUEUE, redis_url=url, last_event_id="0")
    events.on("failed", alarm)
    events.on("completed", lambda _: events.close())
    await events.run()


# endregion


async def main(url: str) -> None:
    async with Queue(QUEUE, redis_url=url) as queue:
        await queue.add("charge", {"order": 7}, backoff=20)
    await Worker(QUEUE, charge, redis_url=url).run_until_idle()
    await follow(url)
    await listen(url)


if __name__ == "__main__":
    server = SessionServer()  # started only when CHASQUI_REDIS_URL names none
    asyncio.run(main(os.environ.get("CHASQUI_REDIS_URL") or server.start().url))
    server.stop()
