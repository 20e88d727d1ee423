"""A delayed job that is cancelled never runs."""

from stage import QUEUE, URL, play, working

from chasquimq import Queue


async def main():
    queue = Queue(QUEUE, redis_url=URL)
    await queue.add("cancelled", 0, delay_ms=200, job_id="cancelled")
    await queue.add("kept", 0, delay_ms=400, job_id="kept")

    print("cancelled", await queue.cancel_delayed("cancelled"))
    print("again", await queue.cancel_delayed("cancelled"))
    print("unknown", await queue.cancel_delayed("unknown"))

    async def handler(job):
        print("ran", job.name, job.data)

    async with working(handler) as ended:
        await ended(1)
        print("after it ran", await queue.cancel_delayed("kept"))
        await queue.add("cancelled", 1, delay_ms=100, job_id="cancelled")
        await ended(1)
    await queue.close()


play(main)
