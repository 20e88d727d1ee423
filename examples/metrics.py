"""Count what workers do, and show it to Prometheus on a port of your own."""

import asyncio
import os
from urllib.request import urlopen

from chasquimq import Job, PrometheusSink, Queue, QueueLabeled, Worker
from chasquimq.server import SessionServer
from chasquimq.telemetry.http import MetricsServer

QUEUE = "example-metrics"


async def greet(job: Job) -> None: ...


# region serve
async def run(url: str) -> None:
    sink = PrometheusSink()  # one for the process, in its default registry
    worker = Worker(QUEUE, greet, redis_url=url, metrics=QueueLabeled(sink, QUEUE))
    pages = MetricsServer(
        sink.exposition,
        is_healthy=lambda: True,  # an answer proves that the event loop runs
        is_ready=lambda: worker.health().is_ok,
        problems=lambda: worker.health().problems,  # the sentences on a 503 page
        port=0,  # any free one; yours would be 9470
    )
    async with pages:
        await worker.run_until_idle()
        await show(pages.port)


# endregion


async def show(port: int) -> None:
    for line in (await asyncio.to_thread(scrape, port)).splitlines():
        if line.startswith("chasquimq_jobs_completed_total"):
            print(line)


def scrape(port: int) -> str:
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as page:
        return page.read().decode()


async def main(url: str) -> None:
    async with Queue(QUEUE, redis_url=url) as queue:
        await queue.add_bulk([{"name": "greet", "data": at} for at in range(3)])
    await run(url)


if __name__ == "__main__":
    server = SessionServer()  # started only when CHASQUI_REDIS_URL names none
    asyncio.run(main(os.environ.get("CHASQUI_REDIS_URL") or server.start().url))
    server.stop()
