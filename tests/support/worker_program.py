"""A worker in a process of its own, for tests that stop, freeze and kill it.

Run as a script with one JSON argument; each start and end of a handler is a line in the journal.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time

from chasquimq import Worker


class Journal:
    """One line an event; a line that is written survives the death of the process."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(self, event: str, job) -> None:
        line = [time.monotonic(), os.getpid(), event, job.id, job.attempt, job.redelivered]
        os.write(self._fd, json.dumps(line).encode() + b"\n")


def handlers(journal: Journal, seconds: float):
    async def sleeping(job):
        journal.note("start", job)
        await asyncio.sleep(seconds)
        journal.note("end", job)

    def blocking(job):
        journal.note("start", job)
        time.sleep(seconds)
        journal.note("end", job)

    async def spinning(job):
        journal.note("start", job)
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            sum(range(1_000))
        journal.note("end", job)

    def spinning_in_a_thread(job):
        journal.note("start", job)
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            sum(range(1_000))
        journal.note("end", job)

    async def stubborn(job):
        journal.note("start", job)
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                journal.note("cancelled", job)
        journal.note("end", job)

    async def failing(job):
        journal.note("start", job)
        await asyncio.sleep(seconds)
        raise ValueError("always")

    return locals()


async def main(plan: dict) -> None:
    journal = Journal(plan["journal"])
    handler = handlers(journal, plan["seconds"])[plan["handler"]]
    worker = Worker(plan["queue"], handler, redis_url=plan["url"], **plan["options"])
    await worker.run(handle_signals=True)
    # Handlers that ignore every request to stop must not keep the process.
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
