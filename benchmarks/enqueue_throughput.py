"""Measures `df.write.format("chasqui")`: rows a second into a queue, and what a row costs.

    python benchmarks/enqueue_throughput.py [--rows 1000000] [--rounds 4] [--ids own|content]
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
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from chasquimq.server.session import SessionServer
from chasquimq.settings import ConnectionSettings
from chasquimq.spark.queues.enqueue import enqueue
from chasquimq.spark.session import SessionSettings, open_session
from chasquimq.store.blocking import BlockingConnection
from chasquimq.wire.keys import QueueKeys

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TICKS = os.sysconf("SC_CLK_TCK")


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
    before = cpu_s()
    with Peak() as peak:
        began_s = time.perf_counter()
        done = enqueue(
            frame, queue, redis_url=url, payload_column="payload",
            id_column="id" if options.ids == "own" else "",
        )  # fmt: skip
        seconds = time.perf_counter() - began_s
    after = cpu_s()
    check_and_empty(url, queue, options.rows)
    assert (done.rows, done.added) == (options.rows, options.rows), done
    result = {
        "round": number,
        "seconds": seconds,
        "rows_per_s": options.rows / seconds,
        "steady_rows_per_s": options.rows / (done.task_s / cores(options.master)),
        "java_us_per_row": (after[0] - before[0]) / options.rows * 1e6,
        "python_us_per_row": (after[1] - before[1]) / options.rows * 1e6,
        "server_us_per_row": (after[2] - before[2]) / options.rows * 1e6,
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
    return int(master.partition("[")[2].strip("]")) if master[-2:-1].isdigit() else os.cpu_count()


def check_and_empty(url: str, queue: str, row_count: int) -> None:
    connection = BlockingConnection(ConnectionSettings(url=url))
    assert connection.call("XLEN", QueueKeys(queue).stream) == row_count
    connection.call("FLUSHALL")
    connection.close()


# ── what it costs ────────────────────────────────────────────────────────────────────────────


def cpu_s() -> tuple[float, float, float]:
    """CPU seconds of the JVM, of all Python processes under this one, and of the server."""
    java = python = server = 0.0
    # This process only watches, which costs more than it does for Spark.
    for pid in family()[1:]:
        try:
            text = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            continue
        name, fields = text[text.index("(") + 1 : text.rindex(")")], text.rpartition(")")[2].split()
        own = (int(fields[11]) + int(fields[12])) / TICKS
        gone_children = (int(fields[13]) + int(fields[14])) / TICKS
        if name.startswith("java"):
            java += own
        elif name.startswith(("valkey", "redis")):
            server += own
        else:
            python += own + gone_children
    return java, python, server


def family() -> list[int]:
    """This process and all that came of it."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found = [os.getpid()]
    for pid in found:
        found += children.get(pid, [])
    return found


class Peak:
    """The most memory that Spark had, shared pages once; the server's is not of it."""

    def __init__(self) -> None:
        self.bytes = 0
        self.python_bytes = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(2.0):
            used = {pid: (name_of(pid), pss_bytes(pid)) for pid in family()}
            mine = [size for name, size in used.values() if not is_server(name)]
            python = [
                size for pid, (name, size) in used.items()
                if not is_server(name) and not name.startswith("java") and pid != os.getpid()
            ]  # fmt: skip
            self.bytes = max(self.bytes, sum(mine))
            self.python_bytes = max(self.python_bytes, sum(python))


def is_server(name: str) -> bool:
    return name.startswith(("valkey", "redis"))


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def pss_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1_024 for line in lines if line.startswith("Pss:")), 0)


if __name__ == "__main__":
    main()
