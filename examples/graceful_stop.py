"""A worker that is stopped: what runs is finished, what waits goes back at once."""

import asyncio
import os
import signal

from chasquimq import Job, Queue, Worker
from chasquimq.server import SessionServer

QUEUE = "example-stop"


async def build_report(job: Job) -> None:
    print(f"{job.data['page']} started")
    if job.data["page"] == "page 1":
        os.kill(os.getpid(), signal.SIGTERM)  # as a process manager would
    await asyncio.sleep(0.2)
    print(f"{job.data['page']} done")


async def main(url: str) -> None:
    async with Queue(QUEUE, redis_url=url) as queue:
        await queue.add_bulk([{"name": "report", "data": {"page": f"page {n}"}} for n in (1, 2)])
    # region worker
    worker = Worker(QUEUE, build_report, redis_url=url, concurrency=1, shutdown_deadline_ms=10_000)
    await worker.run(handle_signals=True)
    # endregion
    print("stopped; the next worker goes on")
    await Worker(QUEUE, build_report, redis_url=url, concurrency=1).run_until_idle()


if __name__ == "__main__":
    server = SessionServer()  # started only when CHASQUI_REDIS_URL names none
    asyncio.run(main(os.environ.get("CHASQUI_REDIS_URL") or server.start().url))
    server.stop()
