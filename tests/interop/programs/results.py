"""What handlers return can be asked for."""

import asyncio

from stage import QUEUE, QUICK, URL, play, until

from chasquimq import Queue, Worker

VALUES = [1, "text", [1, 2], {"a": None}, b"\x00", False, 0, "", []]


async def main():
    queue = Queue(QUEUE, redis_url=URL)
    finished = []

    async def handler(job):
        finished.append(job.id)
        return job.data

    worker = Worker(QUEUE, handler, store_results=True, result_ttl_ms=60_000, **QUICK)
    running = asyncio.ensure_future(worker.run())

    first = await queue.add("first", {"answer": 42})
    print(await first.wait_for_result(timeout=5, poll_interval=0.05))
    jobs = await queue.add_bulk([{"name": "many", "data": value} for value in VALUES])
    nothing = await queue.add("nothing", None)

    async def are_done():
        return nothing.id in finished

    await until(are_done)
    await jobs[-1].wait_for_result(timeout=5)
    print(await queue.get_job_result_bulk([job.id for job in jobs]))
    print(await queue.get_job_result(nothing.id), await queue.get_job_result("unknown"))
    try:
        await (await queue.add("later", 1, delay_ms=60_000)).wait_for_result(timeout=0.3)
    except TimeoutError:
        print("timed out")

    print(worker.name == QUEUE, worker.is_running, worker.is_closed)
    await worker.close()
    await running
    print(worker.is_closed, queue.is_closed)
    await queue.close()
    print(queue.is_closed)


play(main)
