"""Read a table of the lake with tools of your own: rows of one key come in parts, so merge them."""

import tempfile
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

MINUTE = datetime(2026, 11, 14, 7, 30, tzinfo=UTC)


# region merge
def failures(lake: Path) -> list[tuple[Any, ...]]:
    parts = DeltaTable(lake / "gold_failures").to_pyarrow_table()
    with duckdb.connect() as connection:
        connection.register("parts", parts)
        return connection.sql("""
            select name, max(reason), sum(failed), sum(dead), min(first_seen)
            from parts
            group by queue, name, fingerprint, window_start
        """).fetchall()


# endregion


def main(lake: Path) -> None:
    # Two batches of a pipeline met the same failure in the same minute.
    write(lake, failed=3, dead=0, second=5)
    write(lake, failed=2, dead=1, second=48)
    for name, reason, failed, dead, first_seen in failures(lake):
        print(f"{name}: {reason}, failed {failed}, dead {dead}, since second {first_seen.second}")


def write(lake: Path, failed: int, dead: int, second: int) -> None:
    row = {
        "queue": "orders", "name": "charge", "fingerprint": "9f86d081", "reason": "TimeoutError",
        "window_start": MINUTE, "failed": failed, "dead": dead, "run_us": 1_000,
        "first_seen": MINUTE.replace(second=second), "last_seen": MINUTE.replace(second=second),
        "event_date": date(2026, 11, 14),
    }  # fmt: skip
    write_deltalake(lake / "gold_failures", pa.Table.from_pylist([row]), mode="append")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
