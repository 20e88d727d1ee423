"""A view without an event loop adds a job; a worker elsewhere runs it."""

import asyncio
import os

from chasquimq import Job, Queue, Worker
from chasquimq.server import SessionServer

QUEUE = "example-views"


# region add
def add_job(url: str, name: str, data: object) -> str:
    """Add one job from plain code; the answer is its id."""

    async def add() -> str:
        async with Queue(QUEUE, redis_url=url) as queue:
            return (await queue.add(name, data)).id

    return asyncio.run(add())


# endregion


# region view
def sign_up(url: str, form: dict[str, str]) -> tuple[str, int]:
    """What a Flask view would do: answer at once, leave the slow part to a worker."""
    add_job(url, "welcome", {"to": form["email"]})
    return "welcome, a mail is on its way", 202


# endregion


async def welcome(job: Job) -> None:
    print(f"mail to {job.data['to']}")


def main(url: str) -> None:
    text, status = sign_up(url, {"email": "ada@example.org"})
    print(status, text)
    asyncio.run(run_worker(url))


async def run_worker(url: str) -> None:
    await Worker(QUEUE, {"welcome": welcome}, redis_url=url).run_until_idle()


if __name__ == "__main__":
    server = SessionServer()  # started only when CHASQUI_REDIS_URL names none
    main(os.environ.get("CHASQUI_REDIS_URL") or server.start().url)
    server.stop()
