"""Waits of your own: for one job, for a whole worker, and for a turn that has not come."""

import asyncio
import os

from chasquimq import BackoffSpec, Job, Queue, RetryLater, RetrySettings, Worker
from chasquimq.server import SessionServer

QUEUE = "example-retry-later"
partner_has_time = iter([False, False, True])


# region later
async def call_partner(job: Job) -> None:
    if not next(partner_has_time):
        raise RetryLater(delay_ms=200, reason="the partner asks us to wait")
    print(f"called the partner in run {job.run_number}")


# endregion


# region hooks
def note_failure(job: Job) -> None:
    what = f"given up, {job.reason}" if job.reason else "will run again"
    print(f"{job.name}: {job.error}; {what}")


# endregion


async def print_label(job: Job) -> None:
    raise OSError("the printer is off")


async def main(url: str) -> None:
    async with Queue(QUEUE, redis_url=url) as queue:
        # region job
        backoff = BackoffSpec.fixed(20, jitter_ms=0)
        await queue.add("print-label", {"order": 7}, attempts=2, backoff=backoff)
        # endregion
        await queue.add("call-partner", {"order": 7})
    # region worker
    worker = Worker(
        QUEUE,
        {"call-partner": call_partner, "print-label": print_label},
        redis_url=url,
        max_attempts=5,
        retry=RetrySettings(initial_backoff_ms=1_000, max_backoff_ms=60_000, multiplier=3.0),
        on_failed=note_failure,
    )
    # endregion
    await worker.run_until_idle()


if __name__ == "__main__":
    server = SessionServer()  # started only when CHASQUI_REDIS_URL names none
    asyncio.run(main(os.environ.get("CHASQUI_REDIS_URL") or server.start().url))
    server.stop()
