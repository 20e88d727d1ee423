"""Handlers in tasks of Spark beside the same number of plain worker processes.

    python -m benchmarks.spark_workers [--jobs 200000] [--rounds 5] [--workers 2] [--work-ms 0]
        [--server BINARY] [--json FILE]

One server and one session of Spark for all; the sides take turns, and each round begins with the
other one. A queue is filled before its workers start. They are let in at one moment, when all of
them wait for jobs: the clock runs from then until the server has confirmed the last ack, so
neither the start of processes nor their end counts. The first round warms up and is thrown away.
The ratio is taken within each round, then its median. CPU is that of all worker processes, of the
JVM and of the program that supervises them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.report import describe_machine
from benchmarks.scenario import CONCURRENCY, QUEUE, STREAM
from benchmarks.server import Target, open_target, preload
from benchmarks.spark_cost import family, spent_s
from chasquimq.settings import ConnectionSettings
from chasquimq.store.net.blocking import BlockingConnection

CHECKOUT = Path(__file__).parents[1]
SOURCES = CHECKOUT / "src"
GROUP = "default"
HANDLER = "benchmarks.spark_workers:look"
WORK_MS = "CHASQUI_BENCH_WORK_MS"
SIDES = ("plain", "spark")
START_S_MAX = 120.0
ROUND_S_MAX = 300.0
POLL_S = 0.005
_work_s = float(os.environ.get(WORK_MS, "0")) / 1000


async def look(job: Any) -> None:
    """Look at the payload, and wait if that was asked for."""
    assert job.data
    if _work_s:
        await asyncio.sleep(_work_s)


def main() -> None:
    options = parse()
    os.environ[WORK_MS] = str(options.work_ms)
    binary = Path(options.server) if options.server else None
    machine = describe_machine()
    with open_target(binary, None, os.environ) as target, session(options.workers) as spark:
        bench = Bench(target, spark, options)
        rounds = [bench.round(number) for number in range(options.rounds + 1)]
    print_figures(rounds[1:], target, options, machine)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--work-ms", type=float, default=0)
    parser.add_argument("--server", default="")
    parser.add_argument("--json", default="")
    return parser.parse_args()


@contextmanager
def session(workers: int) -> Generator[Any]:
    from chasquimq.spark.session import SessionSettings, open_session
    from chasquimq.spark.workers.settings import workers_conf, workers_master

    master = workers_master("local[*]", workers)
    spark = open_session(SessionSettings(master=master, conf=workers_conf({})))
    try:
        yield spark
    finally:
        spark.stop()


class Bench:
    """Measures one side after the other on one server."""

    def __init__(self, target: Target, spark: Any, options: argparse.Namespace) -> None:
        self._target = target
        self._spark = spark
        self._options = options
        self._server = BlockingConnection(ConnectionSettings(url=target.url))

    def round(self, number: int) -> dict[str, dict[str, float]]:
        """Both sides once; who begins changes."""
        order = SIDES if number % 2 else SIDES[::-1]
        found = {side: self._measured(side) for side in order}
        share = found["spark"]["jobs_per_s"] / found["plain"]["jobs_per_s"]
        rates = " ".join(f"{side}={found[side]['jobs_per_s']:,.0f}/s" for side in SIDES)
        print(f"round {number}: {rates} share={share:.3f}", flush=True)
        return found

    def _measured(self, side: str) -> dict[str, float]:
        self._target.flush()
        asyncio.run(preload(self._target.url, self._options.jobs))
        # Where adds need the group, they have made it.
        self._server.call("XGROUP", "DESTROY", STREAM, GROUP)
        self._server.call("XGROUP", "CREATE", STREAM, GROUP, "$")
        with (self._plain if side == "plain" else self._on_spark)():
            self._until(self._are_all_waiting, START_S_MAX)
            before_s, began_s = cpu_s(self._target.pid), time.perf_counter()
            self._let_in()
            self._until(lambda: self._server.call("XLEN", STREAM) == 0, ROUND_S_MAX)
            seconds = time.perf_counter() - began_s
            used_s = cpu_s(self._target.pid) - before_s
        jobs = self._options.jobs
        return {"jobs_per_s": jobs / seconds, "cpu_us_per_job": used_s / jobs * 1e6}

    def _are_all_waiting(self) -> bool:
        rows = self._server.call("XINFO", "CONSUMERS", STREAM, GROUP)
        return len(rows) >= self._options.workers

    def _let_in(self) -> None:
        """Put the group back to the first job, then wake up the reads that wait with one more each."""
        self._server.call("XGROUP", "SETID", STREAM, GROUP, "0")
        for _ in range(self._options.workers):
            first = self._server.call("XRANGE", STREAM, "-", "+", "COUNT", 1)
            if first:
                self._server.call("XADD", STREAM, "*", *first[0][1])

    def _until(self, condition: Callable[[], bool], within_s: float) -> None:
        until_s = time.monotonic() + within_s
        while not condition():
            if time.monotonic() > until_s:
                raise SystemExit(f"a side was not done within {within_s:.0f} s")
            time.sleep(POLL_S)

    @contextmanager
    def _plain(self) -> Generator[None]:
        command = [
            sys.executable, "-m", "chasquimq", "worker", HANDLER, "--queue", QUEUE,
            "--processes", str(self._options.workers), "--concurrency", str(CONCURRENCY),
        ]  # fmt: skip
        environ = os.environ | {"PYTHONPATH": str(SOURCES), "CHASQUI_REDIS_URL": self._target.url}
        fleet = subprocess.Popen(
            command, env=environ, cwd=CHECKOUT, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            yield
        finally:
            fleet.terminate()
            fleet.wait(START_S_MAX)

    @contextmanager
    def _on_spark(self) -> Generator[None]:
        from chasquimq.spark.workers.run import Stop, WorkerRun
        from chasquimq.spark.workers.settings import HostSettings, RunSettings

        host = HostSettings(
            queue=QUEUE, target=HANDLER, url=self._target.url, folder=str(CHECKOUT),
            options={"concurrency": CONCURRENCY},
        )  # fmt: skip
        stop = Stop()
        run = WorkerRun(
            self._spark.sparkContext, RunSettings(host=host, tasks=self._options.workers), stop
        )
        thread = threading.Thread(target=run.run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(START_S_MAX)
            run.close()


def cpu_s(server_pid: int | None) -> float:
    """CPU seconds of all processes that came of this one, but for the server."""
    watched = [pid for pid in family() if pid not in (os.getpid(), server_pid)]
    return sum(spent_s(pid)[0] for pid in watched)


def print_figures(
    rounds: list[dict[str, Any]],
    target: Target,
    options: argparse.Namespace,
    machine: dict[str, Any],
) -> None:
    shares = [one["spark"]["jobs_per_s"] / one["plain"]["jobs_per_s"] for one in rounds]
    result = {
        "server": target.title,
        "machine": machine,
        "jobs": options.jobs,
        "workers": options.workers,
        "work_ms": options.work_ms,
        "share": {"median": median(shares), "least": min(shares), "most": max(shares)},
        "medians": {
            side: {name: median(one[side][name] for one in rounds) for name in rounds[0][side]}
            for side in SIDES
        },
        "rounds": rounds,
    }
    print(json.dumps({name: result[name] for name in ("server", "share", "medians")}, indent=1))
    if options.json:
        Path(options.json).write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
