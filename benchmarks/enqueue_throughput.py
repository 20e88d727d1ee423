"""Measures `df.write.format("chasqui")`: rows a second into a queue, and what a row costs.

    python -m benchmarks.enqueue_throughput [--rows 1000000] [--rounds 4] [--ids own|content]
        [--payload binary|struct] [--payload-bytes 100] [--server BINARY] [--json FILE]

Every round writes the same number of rows to a new queue. The first rounds of a session are slow:
the JVM has yet to compile what it runs. CPU time for a row tells more than time on a machine that
others use; `steady_rows_per_s` is rows over the time in which tasks wrote, without Spark's planning.
Memory is the most that the JVM and all Python processes had together, and that of the Python alone.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.spark_cost import Peak, cpu
from chasquimq.server.launch import SessionServer
from chasquimq.settings import ConnectionSettings
from chasquimq.spark.queues.enqueue import enqueue
from chasquimq.spark.session import SessionSettings, open_session
from chasquimq.store.net.blocking import BlockingConnection
from chasquimq.wire.keys import QueueKeys

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def main() -> None:
    options = parse()
    server = SessionServer(binary=Path(options.server) if options.server else None).start()
    session = open_session(SessionSettings(master=options.master))
    try:
        results = [one_round(session, server.url, n, options) for n in range(options.rounds)]
    finally:
        session.stop()
        server.stop()
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=1))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--ids", choices=("own", "content"), default="own")
    parser.add_argument("--payload", choices=("binary", "struct"), default="binary")
    parser.add_argument("--payload-bytes", type=int, default=100)
    parser.add_argument("--tasks", type=int, default=4)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--server", default="")
    parser.add_argument("--json", default="")
    return parser.parse_args()


def one_round(
    session: SparkSession, url: str, number: int, options: argparse.Namespace
) -> dict[str, float]:
    queue, frame = f"bench-{number}", rows(session, options)
    before = cpu(with_this=False)
    with Peak(every_s=2.0) as peak:
        began_s = time.perf_counter()
        done = enqueue(
            frame, queue, redis_url=url, payload_column="payload", name="bench",
            id_column="id" if options.ids == "own" else "",
        )  # fmt: skip
        seconds = time.perf_counter() - began_s
    after = cpu(with_this=False)
    check_and_empty(url, queue, options.rows)
    assert (done.rows, done.added) == (options.rows, options.rows), done
    result = {
        "round": number,
        "seconds": seconds,
        "rows_per_s": options.rows / seconds,
        "steady_rows_per_s": options.rows / (done.task_s / cores(options.master)),
        **after.us_per_row(before, options.rows),
        "peak_mb": peak.bytes / 1e6,
        "peak_python_mb": peak.python_bytes / 1e6,
    }
    print(" ".join(f"{name}={value:,.2f}" for name, value in result.items()), flush=True)
    return result


def rows(session: SparkSession, options: argparse.Namespace) -> DataFrame:
    text = f"rpad(concat('order ', id), {options.payload_bytes - 10}, '.')"
    payload = {
        "binary": f"cast(rpad(concat('\\\\xd9', id), {options.payload_bytes}, '.') as binary)",
        "struct": f"named_struct('n', id, 'text', {text})",
    }
    # Without ids of their own, contents tell rows apart.
    return session.range(0, options.rows, 1, options.tasks).selectExpr(
        "concat('order-', lpad(id, 12, '0')) id", f"{payload[options.payload]} payload"
    )


def cores(master: str) -> int:
    return (
        int(master.partition("[")[2].strip("]")) if master[-2:-1].isdigit() else os.cpu_count() or 1
    )


def check_and_empty(url: str, queue: str, row_count: int) -> None:
    connection = BlockingConnection(ConnectionSettings(url=url))
    assert connection.call("XLEN", QueueKeys(queue).stream) == row_count
    connection.call("FLUSHALL")
    connection.close()


if __name__ == "__main__":
    main()
