"""Failures come back until they succeed."""

from stage import QUEUE, URL, play, working

from chasquimq import BackoffSpec, Queue


async def main():
    queue = Queue(QUEUE, redis_url=URL)

    async def handler(job):
        print("ran", job.name, job.data, job.attempt, job.attempts_made)
        if job.attempt < job.data:
            raise ValueError("not yet")

    async with working(handler, max_attempts=3) as ended:
        await queue.add("fixed", 2, attempts=3, backoff=BackoffSpec.fixed(1))
        await ended(3)
        backoff = BackoffSpec.exponential(1, multiplier=1.5, max_ms=10, jitter_ms=1)
        await queue.add("growing", 3, attempts=5, backoff=backoff)
        await ended(4)
        await queue.add("dict", 1, attempts=2, backoff={"kind": "fixed", "delay_ms": 1})
        await ended(2)
        await queue.add("by-the-worker", 2)
        await ended(3)
    print(await queue.peek_dlq())
    await queue.close()


play(main)
