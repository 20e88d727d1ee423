"""Add a job, run it, see it done."""

import asyncio
import os

from chasquimq import Job, Queue, Worker
from chasquimq.server import SessionServer


async def greet(job: Job) -> None:
    print(f"hello, {job.data['name']}")


async def main(url: str) -> None:
    async with Queue("greetings", redis_url=url) as queue:
        await queue.add("greet", {"name": "Ada"})
    await Worker("greetings", greet, redis_url=url).run_until_idle()


if __name__ == "__main__":
    server = SessionServer()  # started only when CHASQUI_REDIS_URL names none
    asyncio.run(main(os.environ.get("CHASQUI_REDIS_URL") or server.start().url))
    server.stop()
