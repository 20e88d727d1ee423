"""One id, one job: at once and delayed."""

from stage import QUEUE, URL, play, working

from chasquimq import Queue


async def main():
    queue = Queue(QUEUE, redis_url=URL)
    for data in ("first", "second"):
        print("now", (await queue.add_unique("now", data, job_id="order-7")).id)
    for data in ("first", "second"):
        job = await queue.add_unique("later", data, job_id="order-8", delay_ms=200)
        print("later", job.id)
    await queue.add("last", "last", delay_ms=600)

    async def handler(job):
        print("ran", job.name, job.data)

    async with working(handler) as ended:
        await ended(3)
    await queue.close()


play(main)
