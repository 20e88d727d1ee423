"""What watching costs: a worker empties the same queue with sinks, events and history on and off.

    python -m benchmarks.observability_cost --rounds 7 --json cost.json

One process and one server for all, sides taking turns, one round thrown away to warm up. Ratios
compare each side with the bare one of the same round.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from benchmarks.report import describe_machine, own_versions, quiet_text
from benchmarks.scenario import CONCURRENCY, QUEUE, STREAM, EventLevel
from benchmarks.server import Target, open_target, preload
from chasquimq import MetricsSink, NoopSink, Worker
from chasquimq.settings import ConnectionSettings
from chasquimq.store.net.connect import open_connection
from chasquimq.store.net.connection import Connection

BARE = "bare"
ROUND_S_MAX = 60
POLL_S = 0.001


@dataclass(frozen=True)
class Side:
    """A name, and how its worker differs from the bare one."""

    name: str
    events: EventLevel = "off"
    history: bool = False
    new_sink: Callable[[], MetricsSink | None] = lambda: None


@dataclass
class Figures:
    """One number a round."""

    jobs_per_s: list[float] = field(default_factory=list)
    cpu_us_per_job: list[float] = field(default_factory=list)


def new_prometheus_sink() -> MetricsSink:
    from prometheus_client import CollectorRegistry

    from chasquimq import PrometheusSink

    return PrometheusSink(registry=CollectorRegistry())


SIDES = (
    Side(BARE),
    Side("noop sink", new_sink=NoopSink),
    Side("prometheus sink", new_sink=new_prometheus_sink),
    Side("history", history=True),
    Side("events terminal", events="terminal"),
    Side("events full", events="full"),
    Side("history and events, as by default", events="full", history=True),
    Side("all", events="full", history=True, new_sink=new_prometheus_sink),
)


def main() -> None:
    asked = _arguments()
    machine = describe_machine()
    print(quiet_text(machine), file=sys.stderr)
    with open_target(asked.server, None, os.environ) as target:
        figures = _run(_measure_all(target, asked.jobs, asked.rounds))
    sides = {name: _summary(one, figures[BARE]) for name, one in figures.items()}
    document = {
        "machine": machine, "versions": own_versions(), "server": target.title,
        "jobs": asked.jobs, "rounds": asked.rounds, "concurrency": CONCURRENCY,
        "sides": sides,
    }  # fmt: skip
    if asked.json is not None:
        asked.json.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=1))
    _draw(sides)


async def _measure_all(target: Target, jobs: int, rounds: int) -> dict[str, Figures]:
    figures = {side.name: Figures() for side in SIDES}
    for number in range(rounds + 1):
        # A side that always came first would always meet the machine that the last one left.
        first = number % len(SIDES)
        for side in (*SIDES[first:], *SIDES[:first]):
            async with asyncio.timeout(ROUND_S_MAX):
                jobs_per_s, cpu_us_per_job = await _measure(side, target.url, jobs)
            if number:
                figures[side.name].jobs_per_s.append(jobs_per_s)
                figures[side.name].cpu_us_per_job.append(cpu_us_per_job)
    return figures


async def _measure(side: Side, url: str, jobs: int) -> tuple[float, float]:
    observer = await open_connection(ConnectionSettings(url=url))
    try:
        await observer.call("FLUSHALL", "SYNC")
        await preload(url, jobs)
        gc.collect()
        return await _consume(side, url, jobs, observer)
    finally:
        await observer.close()


async def _consume(side: Side, url: str, jobs: int, observer: Connection) -> tuple[float, float]:
    """Jobs a second from the first read to the last ack; processor time until all is written."""
    began_s = began_cpu_s = 0.0

    def start(_: object) -> None:
        nonlocal began_s, began_cpu_s
        began_s, began_cpu_s = time.perf_counter(), time.process_time()

    worker = Worker(
        QUEUE, _noop, redis_url=url, concurrency=CONCURRENCY, delayed_enabled=False,
        run_scheduler=False, events=side.events, history=side.history, metrics=side.new_sink(),
        on_startup=start,
    )  # fmt: skip
    running = asyncio.create_task(worker.run())
    # Only the server knows when the last ack was done, and it does not report it unasked.
    while not running.done() and await observer.call("XLEN", STREAM):  # noqa: ASYNC110
        await asyncio.sleep(POLL_S)
    took_s = time.perf_counter() - began_s
    await worker.close()
    await running
    assert worker.health().completed == jobs, "a side that loses jobs would look fast"
    return jobs / took_s, (time.process_time() - began_cpu_s) / jobs * 1e6


async def _noop(job: object) -> None:
    return


def _run(measuring: Coroutine[Any, Any, dict[str, Figures]]) -> dict[str, Figures]:
    try:
        import uvloop
    except ImportError:
        return asyncio.run(measuring)
    return uvloop.run(measuring)


def _summary(side: Figures, bare: Figures) -> dict[str, Any]:
    pairs = zip(side.jobs_per_s, bare.jobs_per_s, strict=True)
    return {
        "jobs_per_s": _spread(side.jobs_per_s),
        "cpu_us_per_job": _spread(side.cpu_us_per_job),
        "to_bare": _spread([own / other for own, other in pairs]),
        "rounds": side.jobs_per_s,
    }


def _spread(numbers: list[float]) -> dict[str, float]:
    return {"median": median(numbers), "min": min(numbers), "max": max(numbers)}


def _draw(sides: dict[str, dict[str, Any]]) -> None:
    print(f"{'':34}{'jobs/s':>10}{'CPU us/job':>12}{'to bare':>9}  (min … max)")
    for name, one in sides.items():
        ratio = one["to_bare"]
        print(
            f"{name:34}{one['jobs_per_s']['median']:>10,.0f}"
            f"{one['cpu_us_per_job']['median']:>12.1f}"
            f"{ratio['median']:>9.2f}  ({ratio['min']:.2f} … {ratio['max']:.2f})"
        )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What watching a worker costs.")
    parser.add_argument("--jobs", type=int, default=30_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--server", type=Path, help="a redis-server or valkey-server to start")
    parser.add_argument("--json", type=Path, help="where the figures go")
    return parser.parse_args()


if __name__ == "__main__":
    main()
