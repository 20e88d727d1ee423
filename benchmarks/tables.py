"""Shows a document to people: tables, notes, and the files that keep a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.charts import ChartsMissing, draw_charts
from benchmarks.growth import growth_rows, server_limits
from benchmarks.latency import capacity_text, latency_rows
from benchmarks.report import quiet_text
from benchmarks.rounds import LIMIT, OURS
from benchmarks.scenario import SERVER, WHATS

Row = dict[str, Any]
LIMIT_TEXT = (
    "limit: a bare client that replays the commands of our own run; how it can be passed is in "
    "benchmarks/README.md"
)
WANTED_TEXT = (
    "wanted: aims that this project set itself, in benchmarks/report.py; met or not met "
    "where all rounds agree"
)


def tables(document: Row) -> list[list[Row]]:
    """Every table that has rows: scenarios, latency, growth."""
    every = (table_rows(document), latency_rows(document), growth_rows(document))
    return [rows for rows in every if rows]


def table_rows(document: Row) -> list[Row]:
    """One row per scenario and side."""
    return [
        _row(scenario, side, is_first=at == 0)
        for scenario in document["scenarios"]
        for at, side in enumerate(scenario["sides"])
    ]


def what_rows(document: Row) -> list[Row]:
    """What each part of the run measures."""
    names = [one["name"] for one in document["scenarios"]]
    names += ["latency"] if document["latency"] else []
    names += dict.fromkeys(f"growth-{one['dimension']}" for one in document["growth"])
    return [{"scenario": name, "what it measures": WHATS[name]} for name in names]


def raw_rows(document: Row) -> list[Row]:
    """The rate of every round."""
    return [
        {
            "scenario": scenario["name"],
            "side": side["side"],
            "jobs/s in each round": " · ".join(
                f"{one['jobs_per_s']:,.0f}" for one in side["rounds"]
            ),
        }
        for scenario in document["scenarios"]
        for side in scenario["sides"]
    ]


def notes(document: Row) -> list[str]:
    """What the tables do not say: where, how, who is missing and why, which bars were met."""
    machine, server = document["machine"], document["server"]
    where = f"{server['kind']} {server['version']}, {machine['cpu']} x {machine['cores']}"
    lines = [
        f"{where}, Python {machine['python']}{_aof_text(server)}",
        quiet_text(machine),
        f"medians of {document['settings']['rounds']} rounds; ratios are paired round by round",
    ]
    lines += [LIMIT_TEXT] if document["scenarios"] else []
    lines += [line for line in (capacity_text(document), _sides_text(document)) if line]
    lines += [f"{side}: {note}" for side, note in document["settings"]["notes"].items()]
    lines += [*_bound_by_server(document), *server_limits(document), *_missing(document)]
    bars = [WANTED_TEXT, *map(_bar_line, document["bars"])] if document["bars"] else []
    return [*lines, *bars, _took_text(document)]


def ratio_text(ratio: float, side: str) -> str:
    return f"{ratio:.0%}" if side == LIMIT else f"{ratio:.1f}x"


def spread_text(ratio: dict[str, float], side: str) -> str:
    low, high = (ratio_text(ratio[end], side) for end in ("min", "max"))
    return f"{ratio_text(ratio['median'], side)} ({low} … {high})"


def _row(scenario: Row, side: Row, *, is_first: bool) -> Row:
    rate, ratio, server = side["jobs_per_s"], side["ours_to_this"], side["server_cpu_share"]
    is_ours = side["side"] == OURS
    return {
        "scenario": scenario["name"] if is_first else "",
        "side": side["side"],
        "jobs/s": f"{rate['median']:,.0f}",
        "min … max": f"{rate['min']:,.0f} … {rate['max']:,.0f}",
        "CPU µs/job": f"{side['cpu_us_per_job']['median']:.1f}",
        "server CPU": f"{server['median']:.0%}" if server else "-",
        "ours to this": "" if is_ours else spread_text(ratio, side["side"]),
    }


def _aof_text(server: Row) -> str:
    if server["aof"] is None:
        return ", a server of yours with settings of its own"
    return ", nothing kept on disk" if server["aof"] == "no" else f", AOF {server['aof']}"


def _sides_text(document: Row) -> str | None:
    sides = {
        side["side"]: f"{side['side']} {side['version']} on {side['loop']}"
        for scenario in document["scenarios"]
        for side in scenario["sides"]
    }
    return f"sides: {', '.join(sides.values())}" if sides else None


def _bound_by_server(document: Row) -> list[str]:
    names: dict[str, list[str]] = {}
    for scenario in document["scenarios"]:
        for side in scenario["sides"]:
            if side["bound_by"] == SERVER:
                names.setdefault(side["side"], []).append(scenario["name"])
    return [f"the server is the limit of {side} in: {', '.join(names[side])}" for side in names]


def _missing(document: Row) -> list[str]:
    reasons = dict.fromkeys(document["peers_missing"].items())
    lines = [f"missing: {side}: {why}" for side, why in reasons]
    lines += [f"failed: {what}: {why}" for what, why in document["failed"].items()]
    absent = {
        (side, why): one["name"]
        for one in document["scenarios"]
        for side, why in one["missing"].items()
        if (side, why) not in reasons
    }
    return lines + [f"not in {name}: {side}: {why}" for (side, why), name in absent.items()]


def _bar_line(bar: Row) -> str:
    side = bar["side"]
    found, wanted = spread_text(bar["found"], side), ratio_text(bar["at_least"], side)
    whose = f"{side} in {bar['of']}" if bar["of"] else side
    return f"bar {bar['verdict']}: {bar['scenario']} is {found} of {whose}, wanted {wanted}"


def _took_text(document: Row) -> str:
    minutes, seconds = divmod(round(document["took_s"]), 60)
    return f"the run took {minutes} min {seconds} s"


# ── files ─────────────────────────────────────────────────────────────────────────────────────────


def keep(document: Row, directory: Path) -> tuple[list[Path], str | None]:
    """Write everything there; which files, and why there are no charts if there are none."""
    directory.mkdir(parents=True, exist_ok=True)
    name = run_name(document)
    written = [directory / f"{name}.json", directory / f"{name}.md"]
    written[0].write_text(json_text(document), "utf-8")
    written[1].write_text(markdown(document), "utf-8")
    try:
        return written + draw_charts(document, directory, name), None
    except ChartsMissing as missing:
        return written, str(missing)


def json_text(document: Row) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def run_name(document: Row) -> str:
    """The same for all files of a run: when, and on what."""
    server = document["server"]
    moment = document["made_at"][:16].replace(":", "")
    return f"{moment}-{server['kind']}-{server['version']}"


def markdown(document: Row) -> str:
    """Notes, tables and the raw rates, ready for a page."""
    parts = ["\n".join(f"- {line}" for line in notes(document))]
    parts += [markdown_table(rows) for rows in tables(document)]
    raw = raw_rows(document)
    if raw:
        parts += ["Rounds:", markdown_table(raw)]
    return "\n\n".join(parts) + "\n"


def markdown_table(rows: Sequence[Row]) -> str:
    names = list(rows[0])
    lines = [names, ["---"] * len(names), *([str(row[name]) for name in names] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
