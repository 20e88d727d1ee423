"""Jobs are added and come to a handler as they were added."""

from stage import QUEUE, URL, play, working

from chasquimq import Queue

VALUES = {
    "nothing": None,
    "flag": True,
    "number": -(2**40),
    "fraction": 0.1,
    "text": "Qusqu → Quito",
    "bytes": b"\x00\xff",
    "list": [1, [2, []]],
    "dict": {"order": 7, "lines": [{"sku": "a"}]},
    "": "without a name",
}


async def main():
    added = {}
    async with Queue(QUEUE, redis_url=URL) as queue:
        for name, value in VALUES.items():
            job = await queue.add(name, value)
            added[job.id] = job
            print("added", repr(job.name), job.data, job.attempt, job.attempts_made, len(job.id))

    async def handler(job):
        is_same = (job.name, job.data) == (added[job.id].name, added[job.id].data)
        print("ran", repr(job.name), job.data, job.attempt, is_same)

    async with working(handler) as ended:
        await ended(len(VALUES))


play(main)
