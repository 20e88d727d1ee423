"""A worker fires the plans of its queue, up to their limit."""

from stage import QUEUE, URL, play, until, working

from chasquimq import Queue, RepeatPattern


async def main():
    queue = Queue(QUEUE, redis_url=URL)
    await queue.upsert_repeatable_job("tick", {"n": 1}, repeat=RepeatPattern.every(300), limit=3)
    ids = set()

    async def handler(job):
        ids.add(job.id)
        print("ran", job.name, job.data, job.attempt)

    async with working(handler, scheduler_tick_ms=50) as ended:
        await ended(3)
    print(len(ids))

    async def is_over():
        return not await queue.get_repeatable_jobs()

    await until(is_over)
    print(await queue.get_repeatable_jobs())
    await queue.close()


play(main)
