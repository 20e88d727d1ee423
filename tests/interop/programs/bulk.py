"""Many jobs at once, plain ones and others."""

from datetime import timedelta

from stage import QUEUE, URL, play, working

from chasquimq import BackoffSpec, Queue


async def main():
    queue = Queue(QUEUE, redis_url=URL)
    print(await queue.add_bulk([]))
    plain = await queue.add_bulk([{"name": f"plain-{n}", "data": n} for n in range(5)])
    print([(job.name, job.data, job.attempt) for job in plain])
    print(len({job.id for job in plain}), {len(job.id) for job in plain})

    mixed = await queue.add_bulk(
        [
            {"name": "by-id", "data": 1, "job_id": "mine"},
            {"name": "patient", "data": 2, "attempts": 2, "backoff": BackoffSpec.fixed(1)},
            {"name": "later", "data": 3, "delay_ms": 300},
            {"name": "latest", "data": 4, "delay": timedelta(milliseconds=600)},
        ]
    )
    print([job.name for job in mixed], mixed[0].id)

    async def handler(job):
        print("ran", job.name, job.data)

    async with working(handler) as ended:
        await ended(9)
    await queue.close()


play(main)
