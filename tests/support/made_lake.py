"""Lakes written by hand: the rows that a test names, in tables as the pipeline writes them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from datasketches import kll_doubles_sketch
from deltalake import write_deltalake

from chasquimq.spark.lake.table_shape import PARTITION
from chasquimq.spark.lake.tables import TABLES

NOON = datetime(2026, 11, 14, 12, 0, tzinfo=UTC)


def minutes(count: float) -> datetime:
    """So many minutes after noon."""
    return NOON + timedelta(minutes=count)


def sketch(*values: float) -> bytes:
    """A sketch of these values, in the form that Spark writes."""
    made = kll_doubles_sketch()
    for value in values:
        made.update(float(value))
    return made.serialize()


def append(lake: Path, name: str, *rows: dict[str, Any]) -> None:
    """Append rows; columns that are not named are null, the day is that of noon."""
    table = TABLES[name]
    full = [
        {**dict.fromkeys(table.names), PARTITION: NOON.date(), **row} for row in rows
    ]  # fmt: skip
    written = pa.Table.from_pylist(full, schema=table.arrow)
    write_deltalake(str(lake / name), written, mode="append", partition_by=[PARTITION])


def make_example(lake: Path) -> Path:
    """Two hours of two queues: traffic, failures, retries, a backlog, targets, an audit, a loss."""
    for queue, names in EXAMPLE.items():
        append(lake, "gold_minute", *_minutes(queue, names))
        append(lake, "gold_backlog", *(_sample(queue, at) for at in range(0, 120, 2)))
    append(lake, "gold_failures", *_failures())
    append(lake, "gold_retries", *_retries())
    append(lake, "gold_slo", *_targets())
    append(lake, "gold_forecast", *_forecasts())
    append(lake, "gold_audit", *_audits())
    append(lake, "bronze_gaps", {"queue": "mail", "channel": "history", "worker": "w1",
                                 "after_id": "1-0", "lost": 120, "unit": "attempts",
                                 "cause": "lost", "detected_at": minutes(70)})  # fmt: skip
    return lake


EVIL = "<script>alert(1)</script>\x1b[31m"
EXAMPLE = {"mail": ("send-email", "digest", EVIL), "shop": ("charge-card", "import-row")}


def _minutes(queue: str, names: tuple[str, ...]) -> list[dict[str, Any]]:
    rows = []
    for at in range(120):
        for number, name in enumerate(names, 1):
            done = 200 // number + (at * 7 * number) % 60
            times = [number * (1 + one % 17) * (1.5 if at > 80 else 1) for one in range(done)]
            rows.append({
                "queue": queue, "name": name, "window_start": minutes(at), "started": done + 9,
                "completed": done, "failed": 6, "retried": 5, "dead": 1,
                "run_kll": sketch(*times), "wait_kll": sketch(*(one * 12 for one in times)),
            })  # fmt: skip
    return rows


def _sample(queue: str, at: int) -> dict[str, Any]:
    growing = at * 40 if queue == "mail" else max(0, 2_000 - at * 18)
    return {
        "queue": queue, "sampled_at": minutes(at), "ready": growing, "running": 12,
        "delayed": 300 - at, "dlq": at // 10, "entries_added": at * 900, "arrived": 1_800,
        "finished": 1_700, "oldest_ms": growing * 30, "consumers": 3,
    }  # fmt: skip


def _failures() -> list[dict[str, Any]]:
    kinds = [
        ("mail", "send-email", "a1b2c3d4", "SMTPServerDisconnected: please run connect() first", 3),
        ("mail", EVIL, "0badc0de", "ValueError: \x00<b>bad</b> & \u202eworse", 2),
        ("shop", "charge-card", "77aa0011", "TimeoutError: bank did not answer", 5),
        ("shop", "import-row", "5eed5eed", "UnrecoverableError: no price given", 1),
    ]
    return [
        {
            "queue": queue, "name": name, "fingerprint": fingerprint, "reason": reason,
            "window_start": minutes(at), "failed": often, "dead": int(often < 3),
            "run_us": often * 40_000, "first_seen": minutes(at), "last_seen": minutes(at + 0.5),
        }
        for queue, name, fingerprint, reason, often in kinds
        for at in range(120)
    ]  # fmt: skip


def _retries() -> list[dict[str, Any]]:
    rows = []
    for queue, name in (("mail", "send-email"), ("shop", "charge-card"), ("shop", "import-row")):
        for attempt, (done, again, dead) in enumerate(
            [(9_000, 700, 20), (600, 90, 10), (70, 0, 20)], 1
        ):
            rows.append({
                "queue": queue, "name": name, "attempt": attempt,
                "wave_at": minutes(125) if again else None,
                "runs": done + again + dead, "completed": done, "retried": again, "dead": dead,
                "added_delay_ms": again * 400, "run_us": (done + again + dead) * 3_000,
            })  # fmt: skip
    return rows


def _targets() -> list[dict[str, Any]]:
    targets = (("mail", "send-email", 500, 12), ("shop", "charge-card", 100, 0))
    return [
        {
            "queue": queue, "name": name, "window_start": minutes(at), "target_ms": target_ms,
            "within": 195, "breached": breached, "allowed_share": 0.01,
        }
        for queue, name, target_ms, breached in targets
        for at in range(120)
    ]  # fmt: skip


def _forecasts() -> list[dict[str, Any]]:
    rates = {"made_at": minutes(118), "arrival_rate": 30.0, "departure_rate": 28.3}
    return [
        {**rates, "queue": "mail", "never_clears": True, "workers_needed": 9},
        {**rates, "queue": "shop", "clears_at": minutes(140), "never_clears": False,
         "arrival_rate": 12.5, "breach_at": minutes(130)},
    ]  # fmt: skip


def _audits() -> list[dict[str, Any]]:
    known = {"channel": "history", "audited_at": minutes(119), "is_settled": True, "open_runs": 0,
             "jobs_with_two_ends": 0, "ends_after_dlq": 0, "redeliveries": 4, "stale": 1,
             "unproven": 0, "skewed_clocks": 0, "entries_lost": 0, "surplus": 0}  # fmt: skip
    return [
        {**known, "queue": "mail", "server_finished": 50_120, "rows_finished": 50_000,
         "rows_lost": 120, "missing_proven": 0, "missing_maybe": 120, "open_runs": 1},
        {**known, "queue": "shop", "server_finished": 40_000, "rows_finished": 40_000,
         "rows_lost": 0, "missing_proven": 0, "missing_maybe": 0},
    ]  # fmt: skip
