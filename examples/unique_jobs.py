"""A job id of your own names one job: adding it again keeps the first."""

import asyncio
import os

from chasquimq import IdConflict, Job, Queue, Worker
from chasquimq.server import SessionServer

QUEUE = "example-unique"


async def send_invoice(job: Job) -> None:
    print(f"invoice for order {job.data['order']}")


async def main(url: str) -> None:
    async with Queue(QUEUE, redis_url=url, unique_for_ms=500) as queue:
        # region add
        order = {"order": 7}
        first = await queue.add("send-invoice", order, job_id="invoice-7")
        again = await queue.add("send-invoice", order, job_id="invoice-7")
        print(f"first is a duplicate: {first.is_duplicate}")
        print(f"again is a duplicate: {again.is_duplicate}")
        # endregion
        # region conflict
        try:
            await queue.add("send-invoice", {"order": 8}, job_id="invoice-7", on_conflict="raise")
        except IdConflict as conflict:
            print(f"taken by a different job: {', '.join(conflict.job_ids)}")
        # endregion
    await Worker(QUEUE, send_invoice, redis_url=url).run_until_idle()


if __name__ == "__main__":
    server = SessionServer()  # started only when CHASQUI_REDIS_URL names none
    asyncio.run(main(os.environ.get("CHASQUI_REDIS_URL") or server.start().url))
    server.stop()
