"""Attempts, waits, a time limit and a pool of their own for the jobs of one handler."""

import asyncio

# region worker
import os

from chasquimq import BackoffSpec, Handler, Job, Queue, Worker
from chasquimq.server import SessionServer

QUEUE = "example-handler-options"


async def charge(job: Job) -> None:
    raise OSError("the bank does not answer")


def resize(job: Job) -> None:
    where = "the worker's process" if os.getpid() == job.data["worker_pid"] else "a child process"
    print(f"resized {job.data['photo']} in {where}", flush=True)


async def send_email(job: Job) -> None:
    print(f"email to {job.data['to']}")


handlers = {
    "charge": Handler(charge, attempts=3, backoff=BackoffSpec.fixed(20), timeout_ms=5_000),
    "resize": Handler(resize, pool="process", timeout_ms=60_000),
    "send-email": send_email,
}


def make_worker(url: str) -> Worker:
    return Worker(QUEUE, handlers, redis_url=url, max_attempts=10, pool_size=2)


# endregion


async def main(url: str) -> None:
    async with Queue(QUEUE, redis_url=url) as queue:
        await queue.add("resize", {"photo": "cat.jpg", "worker_pid": os.getpid()})
        await make_worker(url).run_until_idle()
        await queue.add("charge", {"order": 7})
        await queue.add("send-email", {"to": "ada@example.org"})
        await make_worker(url).run_until_idle()
        [dead] = await queue.peek_dlq()
        print(f"{dead['name']} was given up after {dead['attempt']} runs")


if __name__ == "__main__":
    server = SessionServer()  # started only when CHASQUI_REDIS_URL names none
    asyncio.run(main(os.environ.get("CHASQUI_REDIS_URL") or server.start().url))
    server.stop()
