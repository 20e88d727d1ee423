"""Says what happened in the demo: for people in 80 columns, for programs as JSON."""

from __future__ import annotations

from typing import Any, NamedTuple

import click

from chasquimq.cli.demo.jobs import REMIND_WITHIN_MS, DemoCounts
from chasquimq.cli.demo.stages import PLAN_EVERY_MS, PLAN_NAME, REPLAYED_REASON, Later, Takeover
from chasquimq.cli.output.render import emit_pairs, emit_table


class Throughput(NamedTuple):
    """So many jobs in so much time."""

    job_count: int
    elapsed_s: float

    @property
    def jobs_per_s(self) -> int:
        return round(self.job_count / self.elapsed_s)


class DemoReport(NamedTuple):
    """All that the demo has to say."""

    tally: DemoCounts
    adding: Throughput
    running: Throughput
    later: Later
    takeover: Takeover
    loop: str

    @property
    def tallies(self) -> tuple[DemoCounts, ...]:
        """What every worker counted by itself."""
        return self.tally, self.later.tally, self.takeover.tally


def print_report(report: DemoReport) -> None:
    """Print it for people."""
    _print_paces(report)
    click.echo("\nWhat became of the jobs")
    emit_numbers(_rows_by_name(report.tally))
    click.echo("\nWhat went to the DLQ, and why")
    emit_numbers(_graves(report.tally))
    click.echo("\nAnd then, with a second worker")
    emit_pairs([*_later_pairs(report.later), ("killed", _takeover_text(report.takeover))])


def report_facts(report: DemoReport) -> dict[str, Any]:
    """The same for programs."""
    return {
        "loop": report.loop,
        "adding": _pace_facts(report.adding),
        "running": _pace_facts(report.running),
        "by_name": _counts_by_name(report.tally),
        "dlq": _graves(report.tally),
        **_later_facts(report.later),
        "killed": {
            "taken_over": report.takeover.tally.completed.total(),
            "after_ms": round(report.takeover.after_s * 1000),
        },
    }


def _print_paces(report: DemoReport) -> None:
    retried_count = report.tally.retried.total()
    ran = f"{_pace_text(report.running)}, {retried_count:,} retries included"
    emit_pairs([("added", _pace_text(report.adding)), ("ran", ran)])


def _later_pairs(later: Later) -> list[tuple[str, str]]:
    late = f"p50 {later.late_ms_at(0.5):,} ms late, p99 {later.late_ms_at(0.99):,} ms"
    delayed = f"{len(later.late_ms)} jobs due within {REMIND_WITHIN_MS // 1000} s: {late}"
    gaps = ", ".join(f"{gap_ms:.0f}" for gap_ms in later.gaps_ms)
    answers = ", ".join(f"{order}: {price}" for order, price in later.answers.items())
    ends = f"{later.revived_count} completed, {later.dead_again_count} dead again"
    return [
        ("delayed", f"{delayed}, {later.early_count or 'none'} early"),
        ("repeated", f"{PLAN_NAME} fired {later.fired_count} times, {gaps} ms apart"),
        ("results", f"prices of three orders, waited for: {answers}"),
        ("replayed", f"{later.replayed_count} of the DLQ ({REPLAYED_REASON}): {ends}"),
        ("left", f"{later.left_dead_count} in the DLQ, whose rows have no price"),
    ]


def _takeover_text(takeover: Takeover) -> str:
    held = takeover.tally.completed.total()
    after = f"all of them run by another after {takeover.after_s:.1f} s"
    return f"a worker with {held} jobs in hand, {after}"


def _later_facts(later: Later) -> dict[str, Any]:
    return {
        "delayed": {
            "jobs": len(later.late_ms),
            "early": later.early_count,
            "late_ms_p50": later.late_ms_at(0.5),
            "late_ms_p99": later.late_ms_at(0.99),
        },
        "repeated": {
            "name": PLAN_NAME,
            "every_ms": PLAN_EVERY_MS,
            "fired": later.fired_count,
            "gaps_ms": [round(gap_ms) for gap_ms in later.gaps_ms],
        },
        "results": {str(order): price for order, price in later.answers.items()},
        "replayed": {
            "reason": REPLAYED_REASON,
            "jobs": later.replayed_count,
            "completed": later.revived_count,
            "dead": later.dead_again_count,
            "left_in_dlq": later.left_dead_count,
        },
    }


def _pace_text(pace: Throughput) -> str:
    return f"{pace.job_count:,} jobs in {pace.elapsed_s:.2f} s: {pace.jobs_per_s:,} jobs/s"


def _pace_facts(pace: Throughput) -> dict[str, Any]:
    elapsed_s = round(pace.elapsed_s, 4)
    return {"jobs": pace.job_count, "elapsed_s": elapsed_s, "jobs_per_s": pace.jobs_per_s}


def _counts_by_name(tally: DemoCounts) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "added": tally.added[name],
            "completed": tally.completed[name],
            "retried": tally.retried[name],
            "dead": tally.dead[name],
        }
        for name in sorted(tally.added)
    ]


def _rows_by_name(tally: DemoCounts) -> list[dict[str, Any]]:
    rows = _counts_by_name(tally)
    counted = [column for column in rows[0] if column != "name"]
    total = {"name": "all", **{column: sum(row[column] for row in rows) for column in counted}}
    return [*rows, total]


def _graves(tally: DemoCounts) -> list[dict[str, Any]]:
    return [{"jobs": count, **grave._asdict()} for grave, count in tally.graves.most_common()]


def emit_numbers(rows: list[dict[str, Any]]) -> None:
    """Print rows with the columns of their numbers at the right."""
    if rows:
        texts = [{column: _text(value) for column, value in row.items()} for row in rows]
        emit_table(texts, right=[name for name, one in rows[0].items() if _is_number(one)])


def _text(value: object) -> str:
    return f"{value:,}" if _is_number(value) else str(value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)
