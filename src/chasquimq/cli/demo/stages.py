"""Runs the jobs of the demo: their handlers, and each stage with what it found."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from chasquimq.errors import StoreError, UnrecoverableError
from chasquimq.job import Job
from chasquimq.repeat import RepeatPattern

if TYPE_CHECKING:
    from chasquimq.queue.queue import Queue

PEEK_JOBS = 1_000


class DeadGroup(NamedTuple):
    """What jobs in the DLQ have in common."""

    name: str
    reason: str
    error: str


class DemoCounts:
    """Counts by job name; a job is counted only after the server has confirmed its outcome."""

    def __init__(self) -> None:
        self.added: Counter[str] = Counter()
        self.completed: Counter[str] = Counter()
        self.retried: Counter[str] = Counter()
        self.dead: Counter[str] = Counter()
        self.dead_groups: Counter[DeadGroup] = Counter()
        self.last_end_s = 0.0

    @property
    def finished_count(self) -> int:
        return self.completed.total() + self.dead.total()

    def note_completed(self, job: Job) -> None:
        self.completed[job.name] += 1
        self.last_end_s = time.perf_counter()

    def note_failed(self, job: Job) -> None:
        # A failure that ended its job has a reason, and is counted among the dead.
        if not job.reason:
            self.retried[job.name] += 1

    def note_dead(self, job: Job) -> None:
        self.dead[job.name] += 1
        self.last_end_s = time.perf_counter()

    async def read_dlq(self, queue: Queue) -> None:
        """Walk the whole DLQ, page by page; nothing moves."""
        after: str | None = None
        while letters := await queue.peek_dlq(PEEK_JOBS, after=after):
            for letter in letters:
                self.dead_groups[
                    DeadGroup(letter["name"], letter["reason"], letter["error"] or "")
                ] += 1
            after = letters[-1]["dlq_id"]


MAIL_MS = 1
BACKOFF_MS = 50
JITTER_MS = 50
IMPORT_ATTEMPTS = 2
# The order in which names are added, over and over; emails are as common as the next two.
ROUND = ("send-email", "resize-image", "send-email", "charge-card", "import-row")
# One in so many, counted within its name.
SLOW_BANK_EVERY = 20
NO_PRICE_EVERY = 50
CLOSED_WAREHOUSE_EVERY = 100
REMINDERS = 500
REMIND_WITHIN_MS = 2_000
QUOTES = 3

_BACKOFF = {"kind": "fixed", "delay_ms": BACKOFF_MS, "jitter_ms": JITTER_MS}
_PIXELS = bytes(range(256)) * 8


def demo_jobs(count: int) -> Iterator[Mapping[str, Any]]:
    """Jobs in the form `add_bulk` takes; the same ones every time."""
    for number in range(count):
        name = ROUND[number % len(ROUND)]
        yield _MAKERS[name](name, number // len(ROUND) + 1)


def reminders() -> Iterator[Mapping[str, Any]]:
    """Jobs that are due at instants spread over the next two seconds; their data says when."""
    now_ms = time.time_ns() // 1_000_000
    for number in range(1, REMINDERS + 1):
        due_ms = now_ms + REMIND_WITHIN_MS * number // REMINDERS
        due = datetime.fromtimestamp(due_ms / 1000, UTC)
        yield {"name": "remind", "data": {"due_ms": due_ms}, "delay_ms": due}


def quotes() -> Iterator[Mapping[str, Any]]:
    """Jobs that a caller waits for."""
    for order in range(1, QUOTES + 1):
        yield {"name": "quote-price", "data": {"order": order, "pieces": order * 4}}


async def send_email(job: Job) -> str:
    # Waiting, as most handlers do: a hundred of these wait at once.
    await asyncio.sleep(MAIL_MS / 1000)
    return f"sent to {job.data['to']}"


def resize_image(job: Job) -> int:
    # A plain function: the worker runs it in a thread.
    return zlib.crc32(_PIXELS, job.data["width"])


async def charge_card(job: Job) -> None:
    if job.data["bank_is_slow"] and job.attempt == 0:
        raise TimeoutError("bank did not answer")


async def import_row(job: Job) -> None:
    if job.data["price"] is None:
        raise UnrecoverableError("no price given")
    # It opens for the second half, so that a replay can do what the first runs could not.
    if job.data["warehouse_is_closed"] and not job.state.get("warehouse_is_open"):
        raise ConnectionError("warehouse closed")


async def remind(job: Job) -> None:
    job.state["late_ms"].append(time.time() * 1000 - job.data["due_ms"])


async def count_stock(job: Job) -> None:
    job.state["fired_at_s"].append(time.monotonic())


async def quote_price(job: Job) -> str:
    return f"{job.data['pieces'] * 1.25:.2f}"


HANDLERS = {
    "send-email": send_email,
    "resize-image": resize_image,
    "charge-card": charge_card,
    "import-row": import_row,
}
LATER_HANDLERS = {
    "import-row": import_row,
    "remind": remind,
    "count-stock": count_stock,
    "quote-price": quote_price,
}


def _email(name: str, number: int) -> Mapping[str, Any]:
    return {"name": name, "data": {"to": f"user{number}@example.org"}}


def _image(name: str, number: int) -> Mapping[str, Any]:
    return {"name": name, "data": {"path": f"photos/{number}.jpg", "width": 640}}


def _charge(name: str, number: int) -> Mapping[str, Any]:
    is_slow = number % SLOW_BANK_EVERY == 0
    data = {"order": number, "bank_is_slow": is_slow}
    return {"name": name, "data": data, "backoff": _BACKOFF}


def _row(name: str, number: int) -> Mapping[str, Any]:
    data = {
        "row": number,
        "price": None if number % NO_PRICE_EVERY == 1 else number * 100,
        "warehouse_is_closed": number % CLOSED_WAREHOUSE_EVERY == 0,
    }
    return {"name": name, "data": data, "attempts": IMPORT_ATTEMPTS, "backoff": _BACKOFF}


_MAKERS = {
    "send-email": _email,
    "resize-image": _image,
    "charge-card": _charge,
    "import-row": _row,
}


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
