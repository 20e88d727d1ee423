"""Counts what became of the demo's jobs, as the worker and the DLQ tell of it."""

from __future__ import annotations

import asyncio
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from chasquimq.errors import UnrecoverableError
from chasquimq.job import Job

if TYPE_CHECKING:
    from chasquimq.queue.queue import Queue

PEEK_JOBS = 1_000


class Grave(NamedTuple):
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
        self.graves: Counter[Grave] = Counter()
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

    async def read_graves(self, queue: Queue) -> None:
        """Walk the whole DLQ, page by page; nothing moves."""
        after: str | None = None
        while letters := await queue.peek_dlq(PEEK_JOBS, after=after):
            for letter in letters:
                self.graves[Grave(letter["name"], letter["reason"], letter["error"] or "")] += 1
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
    """Jobs that somebody waits for."""
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
