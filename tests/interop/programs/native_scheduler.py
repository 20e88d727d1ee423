"""The handle that fires plans, and the plans as its caller writes and lists them."""

import asyncio

from stage import QUEUE, URL, consuming, play, until

from chasquimq import Producer, Scheduler

EVERY = {"kind": "every", "interval_ms": 300}
YEARLY = {"kind": "cron", "expression": "0 0 1 1 *"}


async def main():
    producer = Producer(URL, QUEUE)
    tick = {"key": "", "job_name": "tick", "pattern": EVERY, "payload": b"\xc1", "limit": 2}
    print(await producer.upsert_repeatable(tick))
    late = {"key": "late", "job_name": "late", "pattern": YEARLY, "payload": b"", "x": 1}
    policy = {"kind": "fire-all", "max_catchup": 3}
    print(await producer.upsert_repeatable({**late, "missed_fires": policy}))
    for meta in sorted(await producer.list_repeatable(5), key=lambda meta: meta["key"]):
        print({key: meta[key] for key in sorted(meta) if key != "next_fire_ms"})
    print(len(await producer.list_repeatable(1)))

    scheduler = Scheduler(URL, QUEUE, tick_interval_ms=50, batch=8, holder_id="me")
    firing = asyncio.ensure_future(scheduler.run())

    async def handler(job):
        print("ran", job.name, job.payload, job.attempt)

    async with consuming(handler, run_scheduler=False) as ended:
        await ended(2)

    async def is_over():
        return [meta["key"] for meta in await producer.list_repeatable(5)] == ["late"]

    await until(is_over)
    scheduler.shutdown()
    await firing
    print(await producer.remove_repeatable_by_key("late"), await producer.list_repeatable(5))
    print(await producer.remove_repeatable_by_key("late"))
    await producer.shutdown()


play(main)
