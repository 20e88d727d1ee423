"""What grew and what became of it, for the document and the table."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.payload import KIB
from benchmarks.spread import SERVER, bound_by, spread

if TYPE_CHECKING:
    from benchmarks.growth import Grown

Row = dict[str, Any]


def growth_part(grown: Sequence[Grown]) -> list[Row]:
    """One row per dimension, size and side, with medians over the rounds."""
    keys = dict.fromkeys((one.dimension, one.side, one.size) for one in grown)
    return [
        _row([one for one in grown if (one.dimension, one.side, one.size) == key]) for key in keys
    ]


def growth_rows(document: Row) -> list[Row]:
    """What people read: a line per size."""
    return [
        {
            "what grows": _size_text(row),
            "side": row["side"],
            "jobs/s": f"{row['jobs_per_s']['median']:,.0f}",
            "min … max": "{min:,.0f} … {max:,.0f}".format(**row["jobs_per_s"]),
            "added/s": _number(row["add_jobs_per_s"]),
            "bytes/job": _number(row["memory_bytes_per_job"]),
            "CPU µs/job": f"{row['cpu_us_per_job']:.1f}",
            "server CPU": _share(row["server_cpu_share"]),
            "bound by": row["bound_by"] or "-",
        }
        for row in document["growth"]
    ]


def server_limits(document: Row) -> list[str]:
    """Where the server becomes the limit: the first size of each dimension and side."""
    found: dict[tuple[str, str], str] = {}
    for row in document["growth"]:
        if row["bound_by"] == SERVER:
            said = f"{_size_text(row)} ({_share(row['server_cpu_share'])} of a core)"
            found.setdefault((row["dimension"], row["side"]), said)
    return [f"the server is the limit of {side} from: {said}" for (_, side), said in found.items()]


def _row(rounds: Sequence[Grown]) -> Row:
    first = rounds[0]
    figures = [one.figures for one in rounds]
    processes = first.size if first.dimension == "processes" else 1
    return {
        "dimension": first.dimension,
        "size": first.size,
        "side": first.side,
        "jobs": first.figures.jobs,
        "jobs_per_s": spread([one.jobs_per_s for one in figures]),
        "cpu_us_per_job": median(one.cpu_us_per_job for one in figures),
        "server_cpu_share": _median([one.server_cpu_share for one in figures]),
        "bound_by": bound_by(figures, processes),
        "add_jobs_per_s": _median([one.add_jobs_per_s for one in rounds]),
        "memory_bytes_per_job": _median([one.memory_bytes_per_job for one in rounds]),
        "rounds": [one.jobs_per_s for one in figures],
    }


def _median(values: Sequence[float | None]) -> float | None:
    seen = [value for value in values if value is not None]
    return median(seen) if seen else None


def _size_text(row: Row) -> str:
    size = row["size"]
    match row["dimension"]:
        case "payload":
            return f"payload {size // KIB} KiB" if size >= KIB else f"payload {size} B"
        case "processes":
            return f"{size} worker process{'es' if size > 1 else ''}"
        case "leases":
            return f"leases of {size / 1000:g} s" if size else "leases not renewed"
        case dimension:
            return f"{dimension} {size:,}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"
