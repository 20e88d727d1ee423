"""The worker that the demo kills: it takes jobs, finishes none, and dies with all in hand."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from chasquimq.cli.demo_tally import Tally
from chasquimq.errors import StoreError
from chasquimq.job import Job

if TYPE_CHECKING:
    from chasquimq.queue import Queue

VIDEO_NAME = "render-video"
VIDEOS = 8
LEASE_MS = 1_000
HELD_S_MAX = 20.0
_POLL_S = 0.02


class Takeover(NamedTuple):
    """Jobs of a killed worker that another one ran."""

    tally: Tally
    after_s: float


def videos() -> Iterator[Mapping[str, Any]]:
    """Jobs for the worker that is killed."""
    for number in range(1, VIDEOS + 1):
        yield {"name": VIDEO_NAME, "data": {"film": f"films/{number}.mp4"}}


async def never_done(job: Job) -> None:
    """The handler of the worker that is killed."""
    await asyncio.Event().wait()


async def demonstrate_takeover(queue: Queue, url: str) -> Takeover:
    """Kill a worker that holds every video, and let another one run them."""
    from chasquimq.worker import Worker

    await queue.add_bulk(list(videos()))
    killed_at_s = await _kill_with_all_in_hand(queue, url)
    tally, started_at_s = Tally(), list[float]()

    async def render_video(job: Job) -> None:
        started_at_s.append(time.monotonic())

    worker = Worker(
        queue.name,
        {VIDEO_NAME: render_video},
        redis_url=url,
        claim_min_idle_ms=LEASE_MS,
        on_completed=tally.note_completed,
        on_failed=tally.note_failed,
        on_dead=tally.note_dead,
    )
    await worker.run_until_idle()
    return Takeover(tally, max(started_at_s, default=killed_at_s) - killed_at_s)


async def _kill_with_all_in_hand(queue: Queue, url: str) -> float:
    doomed = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "chasquimq", "worker", f"{__name__}:{never_done.__name__}",
        "--queue", queue.name, "--redis-url", url, "--lease", f"{LEASE_MS}ms",
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        await _holds_all(queue, doomed)
    finally:
        if doomed.returncode is None:
            doomed.kill()
        await doomed.wait()
    return time.monotonic()


async def _holds_all(queue: Queue, doomed: asyncio.subprocess.Process) -> None:
    try:
        async with asyncio.timeout(HELD_S_MAX):
            while (await queue.counts()).running < VIDEOS:
                if doomed.returncode is not None:
                    raise StoreError(
                        "the worker to be killed must run until then, but left by itself "
                        f"with code {doomed.returncode}"
                    )
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise StoreError(f"a worker must take {VIDEOS} jobs within {HELD_S_MAX:.0f} s") from None
