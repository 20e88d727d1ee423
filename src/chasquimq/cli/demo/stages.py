"""The worker that the demo kills: it takes jobs, finishes none, and dies with all in hand."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from chasquimq.cli.demo.jobs import LATER_HANDLERS, QUOTES, REMINDERS, DemoCounts, quotes, reminders
from chasquimq.errors import StoreError
from chasquimq.job import Job
from chasquimq.repeat import RepeatPattern

if TYPE_CHECKING:
    from chasquimq.queue.queue import Queue

VIDEO_NAME = "render-video"
VIDEOS = 8
LEASE_MS = 1_000
HELD_S_MAX = 20.0
_POLL_S = 0.02


class Takeover(NamedTuple):
    """Jobs of a killed worker that another one ran."""

    tally: DemoCounts
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
    from chasquimq.worker.worker import Worker

    await queue.add_bulk(list(videos()))
    killed_at_s = await _kill_with_all_in_hand(queue, url)
    tally, started_at_s = DemoCounts(), list[float]()

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


PLAN_NAME = "count-stock"
PLAN_EVERY_MS = 250
PLAN_LIMIT = 4
REPLAYED_REASON = "retries_exhausted"
REPLAYED_NAME = "import-row"
# What is added here by hand; replayed jobs come on top.
ADDED_COUNT = REMINDERS + PLAN_LIMIT + QUOTES
END_S_MAX = 30


class Later(NamedTuple):
    """What became of the second half."""

    tally: DemoCounts
    late_ms: list[float]
    fired_count: int
    gaps_ms: list[float]
    answers: dict[int, str]
    replayed_count: int
    revived_count: int
    dead_again_count: int
    left_dead_count: int

    @property
    def early_count(self) -> int:
        return sum(late_ms < 0 for late_ms in self.late_ms)

    def late_ms_at(self, share: float) -> int:
        """How late all but the latest few were: 0.5 is the median."""
        rank = math.ceil(share * len(self.late_ms))
        return round(sorted(self.late_ms)[max(0, rank - 1)])


async def demonstrate_later(queue: Queue, url: str, advance_to: Callable[[int], None]) -> Later:
    """Add, plan and replay, and run one worker until all of it has come to its end."""
    from chasquimq.worker.worker import Worker

    tally = DemoCounts()
    worker = Worker(
        queue.name,
        LATER_HANDLERS,
        redis_url=url,
        store_results=True,
        on_completed=tally.note_completed,
        on_failed=tally.note_failed,
        on_dead=tally.note_dead,
    )
    worker.state.update(late_ms=[], fired_at_s=[], warehouse_is_open=True)
    running = asyncio.create_task(worker.run(), name="chasqui-demo-worker")
    try:
        answers, replayed_count = await _set_in_motion(queue)
        await _all_ended(tally, ADDED_COUNT + replayed_count, advance_to)
    finally:
        worker.request_stop()
        await running
    return await _summary(queue, tally, worker.state, answers, replayed_count)


async def _set_in_motion(queue: Queue) -> tuple[dict[int, str], int]:
    await queue.add_bulk(list(reminders()))
    every = RepeatPattern.every(PLAN_EVERY_MS)
    await queue.upsert_repeatable_job(PLAN_NAME, None, repeat=every, limit=PLAN_LIMIT)
    dead_count = (await queue.counts()).dead
    replayed = await queue.replay_dlq(dead_count, name=REPLAYED_NAME, reason=REPLAYED_REASON)
    asked = await queue.add_bulk(list(quotes()))
    answers = {job.data["order"]: await job.wait_for_result() for job in asked}
    return answers, int(replayed)


async def _all_ended(tally: DemoCounts, count: int, advance_to: Callable[[int], None]) -> None:
    try:
        async with asyncio.timeout(END_S_MAX):
            while tally.finished_count < count:
                advance_to(tally.finished_count)
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        missing = count - tally.finished_count
        raise StoreError(f"every job must end within {END_S_MAX} s, {missing} did not") from None


async def _summary(
    queue: Queue,
    tally: DemoCounts,
    state: dict[str, Any],
    answers: dict[int, str],
    replayed_count: int,
) -> Later:
    fired_at_s: list[float] = state["fired_at_s"]
    return Later(
        tally=tally,
        late_ms=state["late_ms"],
        fired_count=len(fired_at_s),
        gaps_ms=[(after_s - before_s) * 1000 for before_s, after_s in pairwise(fired_at_s)],
        answers=answers,
        replayed_count=replayed_count,
        revived_count=tally.completed[REPLAYED_NAME],
        dead_again_count=tally.dead[REPLAYED_NAME],
        left_dead_count=(await queue.counts()).dead,
    )
