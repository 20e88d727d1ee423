"""Measures the pipeline: attempts or events of a server into every table of a lake, a second.

    python -m benchmarks.pipeline_throughput [--channel history|events] [--rows 2000000]
        [--rounds 4] [--batch-rows 500000] [--json FILE]

Every round reads the same stream into a new lake. The first rounds of a session are slow: the JVM
has yet to compile what it runs. CPU time for a row tells more than time on a machine that others use.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.spark_cost import Peak, cpu
from chasquimq.model.delivery import Failure
from chasquimq.server.launch import SessionServer
from chasquimq.settings import ConnectionSettings
from chasquimq.spark.lake.lake import Lake
from chasquimq.spark.pipeline.batches import BatchReport
from chasquimq.spark.pipeline.pipeline import Pipeline
from chasquimq.spark.pipeline.settings import PipelineSettings
from chasquimq.spark.session import SessionSettings, open_session
from chasquimq.store.net.blocking import BlockingConnection
from chasquimq.store.net.connection import pack
from chasquimq.wire.history_writer import HistoryBlock, encode_history
from chasquimq.wire.keys import QueueKeys
from chasquimq.wire.new_job import new_job_ids

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUEUE = "bench"
NAMES = ("email", "charge", "thumb", "sync", "report")
ROWS_PER_ENTRY = 1_000


def main() -> None:
    options = parse()
    server = SessionServer().start()
    lake = Path(tempfile.mkdtemp(prefix="chasqui-bench-")) / "lake"
    try:
        filled_s = fill(server.url, options.channel, options.rows)
        print(f"filled {options.rows:,} rows of {options.channel} in {filled_s:.1f} s", flush=True)
        results = measure(server.url, lake, options)
    finally:
        shutil.rmtree(lake.parent, ignore_errors=True)
        server.stop()
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=1))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--channel", choices=("history", "events"), default="history")
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--batch-rows", type=int, default=500_000)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--json", default="")
    return parser.parse_args()


def measure(url: str, lake: Path, options: argparse.Namespace) -> list[dict[str, float]]:
    session = open_session(SessionSettings(master=options.master))
    settings = PipelineSettings(
        lake=lake, queues=(QUEUE,), connection=ConnectionSettings(url=url),
        channel=options.channel, slo={"email": 1_000}, max_rows_per_batch=options.batch_rows,
    )  # fmt: skip
    results: list[dict[str, float]] = []
    for number in range(options.rounds):
        shutil.rmtree(lake, ignore_errors=True)
        results.append(one_round(session, settings, number, options.rows))
        print(" ".join(f"{name}={value:,.2f}" for name, value in results[-1].items()), flush=True)
    check(lake, options)
    session.stop()
    return results


def one_round(
    session: SparkSession, settings: PipelineSettings, number: int, rows: int
) -> dict[str, float]:
    before, batches = cpu(with_this=True), list[BatchReport]()
    with Peak(every_s=0.5) as peak:
        began_s = time.perf_counter()
        run = Pipeline(session, settings).once(batches.append)
        seconds = time.perf_counter() - began_s
    after = cpu(with_this=True)
    assert run.rows == rows, (run.rows, rows)
    busy_s = sum(report.seconds for report in batches)
    return {
        "round": number,
        "seconds": seconds,
        "rows_per_s": rows / seconds,
        "batch_rows_per_s": rows / busy_s,
        **after.us_per_row(before, rows),
        "peak_mb": peak.bytes / 1e6,
    }


def check(lake: Path, options: argparse.Namespace) -> None:
    tables = Lake(lake)
    bronze = "bronze_attempts" if options.channel == "history" else "bronze_events"
    stored = tables.table(bronze)
    assert stored is not None
    assert stored.count() == options.rows
    ends = ["completed", "retried", "dead"]
    counted = tables.rows("gold_minute", ends)
    total = sum(sum(counted.column(name).to_pylist()) for name in ends)
    silver = tables.table("silver_attempts")
    assert silver is not None
    assert total == silver.count(), total


# ── what there is to read ────────────────────────────────────────────────────────────────────


def fill(url: str, channel: str, rows: int) -> float:
    connection = BlockingConnection(ConnectionSettings(url=url))
    began_s = time.perf_counter()
    entries = history_entries(rows) if channel == "history" else event_entries(rows)
    key = getattr(QueueKeys(QUEUE), channel)
    waiting: list[bytes] = []
    for fields in entries:
        waiting.append(pack(("XADD", key, "*", *fields)))
        if len(waiting) == (20 if channel == "history" else 1_000):
            connection.send(b"".join(waiting), len(waiting))
            waiting.clear()
    if waiting:
        connection.send(b"".join(waiting), len(waiting))
    connection.close()
    return time.perf_counter() - began_s


def history_entries(rows: int) -> Iterator[list[bytes]]:
    """20 attempts a millisecond of five names; two in a hundred fail, one in five hundred dies."""
    rng = random.Random(7)
    failures = [Failure("ValueError", f"bad value of {'x' * at}") for at in range(20)]
    began_ms = time.time_ns() // 1_000_000 - 3_600_000
    for seq, at in enumerate(range(0, rows, ROWS_PER_ENTRY), start=1):
        count = min(ROWS_PER_ENTRY, rows - at)
        yield encode_history(
            attempts(rng, failures, began_ms + at // 20, count),
            worker="host:1:bench", run="bench", seq=seq,
        )  # fmt: skip


def attempts(rng: random.Random, failures: list[Failure], now_ms: int, count: int) -> HistoryBlock:
    block = HistoryBlock()
    rows = block.rows
    rows.job_ids = new_job_ids(count, now_ms)
    rows.names = rng.choices(NAMES, k=count)
    dice = [rng.random() for _ in range(count)]
    rows.outcomes = [1 if roll < 0.02 else 2 if roll < 0.022 else 0 for roll in dice]
    rows.attempts = [
        3 if roll < 0.022 and roll >= 0.02 else 2 if roll > 0.99 else 1 for roll in dice
    ]
    rows.failures = [rng.choice(failures) if outcome else None for outcome in rows.outcomes]
    enqueued_ms = [now_ms - rng.randrange(2_000) for _ in range(count)]
    rows.enqueued_ms = [*enqueued_ms]
    rows.ready_ms = [ms + 1 for ms in enqueued_ms]
    rows.due_ms = [None] * count
    rows.started_us = [now_ms * 1_000 + at * 40 for at in range(count)]
    rows.durations_us = [int(rng.expovariate(1 / 5_000)) for _ in range(count)]
    rows.deliveries = [1] * count
    rows.backoffs_ms = [1_000 if outcome == 1 else 0 for outcome in rows.outcomes]
    return block


def event_entries(rows: int) -> Iterator[list[str]]:
    """Jobs that start and complete, with the fields that our workers write."""
    rng = random.Random(7)
    now_ms = time.time_ns() // 1_000_000 - 3_600_000
    for at in range(0, rows, 2):
        (job_id,) = new_job_ids(1, now_ms)
        ts, name = now_ms + at // 20, NAMES[rng.randrange(len(NAMES))]
        about = ["enq", str(ts - 40), "w", "host:1:bench", "dc", "1"]
        head = ["id", job_id, "ts"]
        yield ["e", "active", *head, str(ts), "n", name, "attempt", "1", *about]
        if at + 1 < rows:
            took = ["duration_us", str(int(rng.expovariate(1 / 5_000)))]
            yield ["e", "completed", *head, str(ts + 5), "n", name, "attempt", "1", *took, *about]


if __name__ == "__main__":
    main()
