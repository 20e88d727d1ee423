"""The second half of the demo: jobs that wait, one that repeats, answers, and a replay."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from chasquimq.cli.demo_jobs import LATER_HANDLERS, QUOTES, REMINDERS, quotes, reminders
from chasquimq.cli.demo_tally import Tally
from chasquimq.errors import StoreError
from chasquimq.repeat import RepeatPattern

if TYPE_CHECKING:
    from chasquimq.queue import Queue

PLAN_NAME = "count-stock"
PLAN_EVERY_MS = 250
PLAN_LIMIT = 4
REPLAYED_REASON = "retries_exhausted"
REPLAYED_NAME = "import-row"
# What is added here by hand; replayed jobs come on top.
ADDED_COUNT = REMINDERS + PLAN_LIMIT + QUOTES
END_S_MAX = 30
_POLL_S = 0.02


class Later(NamedTuple):
    """What became of the second half."""

    tally: Tally
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
    from chasquimq.worker import Worker

    tally = Tally()
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


async def _all_ended(tally: Tally, count: int, advance_to: Callable[[int], None]) -> None:
    try:
        async with asyncio.timeout(END_S_MAX):
            while tally.finished_count < count:
                advance_to(tally.finished_count)
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        missing = count - tally.finished_count
        raise StoreError(f"every job must end within {END_S_MAX} s, {missing} did not") from None


async def _summary(
    queue: Queue, tally: Tally, state: dict[str, Any], answers: dict[int, str], replayed_count: int
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
