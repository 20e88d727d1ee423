"""Look at jobs that were given up, send back those that can succeed now, delete the others."""

import asyncio
import os

from chasquimq import Job, Queue, UnrecoverableError, Worker
from chasquimq.server import SessionServer

QUEUE = "example-dead-letters"


async def import_row(job: Job) -> None:
    if job.data["price"] is None:
        raise UnrecoverableError("no price given")
    if not job.state["warehouse_is_open"]:
        raise ConnectionError("the warehouse is closed")
    print(f"row {job.data['row']}: imported")


async def main(url: str) -> None:
    async with Queue(QUEUE, redis_url=url) as queue:
        for row, price in ((1, 10), (2, None), (3, 30)):
            await queue.add("import-row", {"row": row, "price": price}, attempts=1)
        await work(url, warehouse_is_open=False)
        # region peek
        for letter in await queue.peek_dlq():
            print(f"{letter['name']}: {letter['reason']}, {letter['error']}")
        # endregion
        # region replay
        replayed = await queue.replay_dlq(reason="retries_exhausted")
        print(f"replayed: {replayed}")
        # endregion
        await work(url, warehouse_is_open=True)
        saved = await queue.peek_dlq(reason="unrecoverable")
        # region purge
        deleted = await queue.purge_dlq(reason="unrecoverable")
        print(f"deleted: {deleted}")
        # endregion
        # region import
        imported = await queue.import_dlq(saved)
        print(f"imported: {imported}, again: {await queue.import_dlq(saved)}")
        # endregion
        # region edit
        (letter,) = await queue.peek_dlq(1)
        ids = [letter["dlq_id"]]
        await queue.replay_dlq(1, ids=ids, edit=lambda row: row | {"price": 20})
        # endregion
        await work(url, warehouse_is_open=True)
        print(f"left in the DLQ: {(await queue.counts()).dead}")


async def work(url: str, *, warehouse_is_open: bool) -> None:
    worker = Worker(QUEUE, import_row, redis_url=url, concurrency=1)
    worker.state["warehouse_is_open"] = warehouse_is_open
    await worker.run_until_idle()


if __name__ == "__main__":
    server = SessionServer()  # started only when CHASQUI_REDIS_URL names none
    asyncio.run(main(os.environ.get("CHASQUI_REDIS_URL") or server.start().url))
    server.stop()
