"""A scrape of a worker process: the page can be read, and its totals are what ran."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import urllib.request
from collections import Counter
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from chasquimq.telemetry.families import FAMILIES
from chasquimq.wire.history import decode_history, outcome_label
from support.command import RunningCommand
from support.waiting import eventually

SOURCES = Path(__file__).parents[2] / "src"
TASKS = """
import os

from chasquimq import RetryLater, UnrecoverableError


async def note(job):
    with open("ran", "a") as ran:
        ran.write(f"{job.name}\\n")


async def send(job):
    await note(job)


async def fail_once(job):
    await note(job)
    if job.attempt == 0:
        raise ValueError("not yet")


async def give_up(job):
    await note(job)
    raise UnrecoverableError("never")


async def wait(job):
    await note(job)
    if not os.path.exists(job.id):
        open(job.id, "w").close()
        raise RetryLater(10)


handlers = {'say "hi"\\n': send, "fail once": fail_once, "give up": give_up, "wait": wait, "": send}
"""
JOBS = [
    *[{"name": 'say "hi"\n', "data": at} for at in range(300)],
    *[{"name": "fail once", "data": at, "backoff": 10} for at in range(7)],
    *[{"name": "give up", "data": at} for at in range(3)],
    *[{"name": "wait", "data": at} for at in range(5)],
    *[{"name": "", "data": at} for at in range(2)],
]
RAN = {'say "hi"\n': 300, "fail once": 14, "give up": 3, "wait": 10, "": 2}
COMPLETED = {'say "hi"\n': 300, "fail once": 7, "wait": 5, "": 2}


class Scraped:
    """A worker process with a page of metrics, and the last page that was read."""

    def __init__(self, command: RunningCommand, folder: Path) -> None:
        self.command = command
        self._ran = folder / "ran"
        self.page = ""

    @property
    def ran(self) -> Counter[str]:
        # One name has a line break of its own.
        text = self._ran.read_text().replace('say "hi"\n\n', 'say "hi"\\n\n')
        return Counter(line.replace("\\n", "\n") for line in text.splitlines())

    async def scrape(self) -> None:
        port = re.search(r"http://[\d.]+:(\d+)", self.command.err)[1]
        self.page = await asyncio.to_thread(_get, f"http://127.0.0.1:{port}/metrics")

    def totals(self, metric: str, label: str = "name") -> dict[str, float]:
        found = Counter()
        for family in text_string_to_metric_families(self.page):
            for sample in family.samples:
                if sample.name == metric:
                    found[sample.labels.get(label, "")] += sample.value
        return dict(found)

    async def until(self, metric: str, total: int) -> None:
        async def is_there() -> bool:
            await self.scrape()
            return sum(self.totals(metric).values()) >= total

        await eventually(is_there, within_s=20, what=f"{metric} {total}")


def of_outcome(rows: Counter[tuple[str, str]], outcome: str) -> dict[str, int]:
    return {name: count for (word, name), count in rows.items() if word == outcome}


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return answer.read().decode()


@pytest.fixture
async def scraped(url, queue_name, tmp_path):
    (tmp_path / "tasks.py").write_text(TASKS)
    environ = {**os.environ, "PYTHONPATH": str(SOURCES), "CHASQUI_REDIS_URL": url}
    words = ("worker", "tasks:handlers", "--queue", queue_name, "--metrics-port", "0")
    command = RunningCommand(words, environ, tmp_path)
    await command.until_said("consuming")
    yield Scraped(command, tmp_path)
    command.kill()


async def test_totals_on_the_page_equal_what_ran(scraped, queue):
    await queue.add_bulk(JOBS)

    await scraped.until("chasquimq_jobs_completed_total", sum(COMPLETED.values()))
    await scraped.until("chasquimq_dlq_routed_total", 3)

    assert scraped.ran == RAN
    assert scraped.totals("chasquimq_handler_duration_seconds_count") == RAN
    assert scraped.totals("chasquimq_jobs_completed_total") == COMPLETED
    assert scraped.totals("chasquimq_jobs_failed_total") == {"fail once": 7, "give up": 3}
    assert scraped.totals("chasquimq_jobs_snoozed_total") == {"wait": 5}
    assert scraped.totals("chasquimq_retries_scheduled_total") == {"fail once": 7, "wait": 5}
    assert scraped.totals("chasquimq_dlq_routed_total", "reason") == {"unrecoverable": 3}
    assert sum(scraped.totals("chasquimq_promoter_promoted_total").values()) == 12
    assert sum(scraped.totals("chasquimq_consumer_batch_size_sum").values()) == sum(RAN.values())
    assert await scraped.command.ended(signal.SIGTERM) == 0


async def test_totals_on_the_page_equal_the_history(scraped, queue, raw):
    await queue.add_bulk(JOBS)
    await scraped.until("chasquimq_jobs_completed_total", sum(COMPLETED.values()))
    await scraped.until("chasquimq_dlq_routed_total", 3)
    assert await scraped.command.ended(signal.SIGTERM) == 0

    entries = [decode_history(e[1]) for e in await raw("XRANGE", raw.keys.history, "-", "+")]
    rows = Counter(
        (outcome_label(row.outcome), row.name) for entry in entries for row in entry.rows()
    )

    assert of_outcome(rows, "completed") == scraped.totals("chasquimq_jobs_completed_total")
    assert of_outcome(rows, "snoozed") == scraped.totals("chasquimq_jobs_snoozed_total")
    failed = of_outcome(rows, "retried") | of_outcome(rows, "dead")
    assert failed == scraped.totals("chasquimq_jobs_failed_total")
    assert rows.total() == sum(RAN.values())


async def test_every_sample_is_of_a_known_kind_and_says_its_queue(scraped, queue, queue_name):
    await queue.add("wait", 1)
    await scraped.until("chasquimq_jobs_completed_total", 1)

    kinds = {family.name.removesuffix("_total"): family.kind for family in FAMILIES}
    ours = [
        family
        for family in text_string_to_metric_families(scraped.page)
        if family.name.startswith("chasquimq_")
    ]
    assert {family.name: family.type for family in ours}.items() <= kinds.items()
    assert {sample.labels["queue"] for family in ours for sample in family.samples} == {queue_name}
    series = [(s.name, *s.labels.items()) for family in ours for s in family.samples]
    assert len(series) == len(set(series))


async def test_the_page_tells_how_the_worker_is_doing_and_what_it_dropped(scraped, raw, queue):
    await raw("SET", raw.keys.events, "no stream")
    await queue.add_bulk([{"name": "", "data": at} for at in range(4)])
    await scraped.until("chasquimq_events_dropped_total", 8)

    assert sum(scraped.totals("chasquimq_jobs_completed_total").values()) == 4
    assert sum(scraped.totals("chasquimq_worker_consuming").values()) == 1
    assert sum(scraped.totals("chasquimq_worker_loops_down").values()) == 0
    assert 0 <= sum(scraped.totals("chasquimq_worker_last_read_age_seconds").values()) < 5
