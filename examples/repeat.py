"""A job that comes again and again, and one that comes every morning."""

import asyncio
import os
from datetime import datetime
from zoneinfo import ZoneInfo

from chasquimq import Job, MissedFiresPolicy, Queue, RepeatPattern, Worker
from chasquimq.server import SessionServer

QUEUE = "example-repeat"
LIMA = ZoneInfo("America/Lima")


async def count_stock(job: Job) -> None:
    print(f"counting shelf {job.data['shelf']}")
    job.state["counted"].release()


async def send_report(job: Job) -> None:
    print(f"report for {job.data['to']}")
    job.state["counted"].release()


async def main(url: str) -> None:
    async with Queue(QUEUE, redis_url=url) as queue:
        # region every
        every = RepeatPattern.every(100)
        plan = await queue.upsert_repeatable_job("count-stock", {"shelf": 7}, repeat=every, limit=3)
        print(f"planned: {plan.id}")
        # endregion
        # region cron
        await queue.upsert_repeatable_job(
            "report",
            {"to": "Ada"},
            repeat=RepeatPattern.cron("30 7 * * MON-FRI", tz="America/Lima"),
            key="morning-report",
            missed_fires=MissedFiresPolicy.fire_once(),
            attempts=5,
        )
        # endregion
        # region list
        for plan in await queue.get_repeatable_jobs():
            next_fire = datetime.fromtimestamp(plan.next_fire_ms / 1000, LIMA)
            if plan.key == "morning-report":
                print(f"{plan.key}: next at {next_fire:%H:%M}")
        # endregion
        await run(url, fires=3)
        # region now
        await queue.run_repeatable_now("morning-report")
        # endregion
        await run(url, fires=1)
        # region remove
        print(f"removed: {await queue.remove_repeatable_by_key('morning-report')}")
        # endregion
        print(f"plans left: {len(await queue.get_repeatable_jobs())}")


async def run(url: str, fires: int) -> None:
    """Run a worker until that many fires have been worked on."""
    handlers = {"count-stock": count_stock, "report": send_report}
    worker = Worker(QUEUE, handlers, redis_url=url)
    worker.state["counted"] = counted = asyncio.Semaphore(0)
    running = asyncio.create_task(worker.run())
    for _ in range(fires):
        await counted.acquire()
    await worker.close()
    await running


if __name__ == "__main__":
    server = SessionServer()  # started only when CHASQUI_REDIS_URL names none
    asyncio.run(main(os.environ.get("CHASQUI_REDIS_URL") or server.start().url))
    server.stop()
