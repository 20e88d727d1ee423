"""Says what happened in the demo, and asks its tables what no log could answer."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from chasquimq.cli.demo.stages import (
    PLAN_EVERY_MS,
    PLAN_NAME,
    REMIND_WITHIN_MS,
    REPLAYED_REASON,
    DemoCounts,
    Later,
    Takeover,
)
from chasquimq.cli.output.render import emit_pairs, emit_table
from chasquimq.cli.output.terminal import working
from chasquimq.cli.pipeline.options import DEFAULT_MASTER, batch_text, spark_session
from chasquimq.cli.pipeline.report import PAGE_NAME, ask_report, write_page
from chasquimq.errors import SettingsError
from chasquimq.model.json_value import json_value
from chasquimq.server.files import own_directory

if TYPE_CHECKING:
    from chasquimq.spark.pipeline.settings import PipelineRun
    from chasquimq.spark.report.shape import Report


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
    emit_numbers(_dead_groups(report.tally))
    click.echo("\nAnd then, with a second worker")
    emit_pairs([*_later_pairs(report.later), ("killed", _takeover_text(report.takeover))])


def report_facts(report: DemoReport) -> dict[str, Any]:
    """The same for programs."""
    return {
        "loop": report.loop,
        "adding": _pace_facts(report.adding),
        "running": _pace_facts(report.running),
        "by_name": _counts_by_name(report.tally),
        "dlq": _dead_groups(report.tally),
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


def _dead_groups(tally: DemoCounts) -> list[dict[str, Any]]:
    return [{"jobs": count, **group._asdict()} for group, count in tally.dead_groups.most_common()]


def emit_numbers(rows: list[dict[str, Any]]) -> None:
    """Print rows with the columns of their numbers at the right."""
    if rows:
        texts = [{column: _text(value) for column, value in row.items()} for row in rows]
        emit_table(texts, right=[name for name, one in rows[0].items() if _is_number(one)])


def _text(value: object) -> str:
    return f"{value:,}" if _is_number(value) else str(value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


class DemoQuery(NamedTuple):
    """A question in words, and the same in SQL."""

    words: str
    sql: str


QUESTIONS = (
    DemoQuery(
        "Which errors were there, and how many jobs did each of them end?",
        """
        select name, reason, sum(failed)::bigint as failed, sum(dead)::bigint as dead
        from gold_failures group by name, reason order by failed desc, name, reason
        """,
    ),
    DemoQuery(
        "How many jobs did another attempt save, and how many did it not?",
        """
        select name, sum(completed)::bigint as saved, sum(dead)::bigint as dead,
               round(sum(completed) / sum(runs), 3) as succeeded
        from gold_retries where attempt > 1 group by name order by saved desc, name
        """,
    ),
    DemoQuery(
        "How long did the slowest one in a hundred wait, and run?",
        """
        select name, sum(completed)::bigint as completed,
               round(kll_sketch_get_quantile_double(kll_merge_agg_double(wait_kll), 0.99), 3)
                   as wait_p99_ms,
               round(kll_sketch_get_quantile_double(kll_merge_agg_double(run_kll), 0.99), 3)
                   as run_p99_ms
        from gold_minute group by name order by wait_p99_ms desc, name
        """,
    ),
)


FOLDER = Path(".chasqui/demo")
# Emails are added all at once and wait for each other; reminders should be on time.
TARGETS_MS = {"send-email": 2_000, "charge-card": 2_000, "remind": 250}
COUNTED = ("completed", "retried", "dead")


class Difference(NamedTuple):
    """A number on which the workers and the report do not agree."""

    name: str
    what: str
    by_workers: int
    by_report: int


class Answered(NamedTuple):
    """A question and the rows that answer it."""

    question: DemoQuery
    rows: list[dict[str, Any]]


class Tables(NamedTuple):
    """What became of the history, and what it says."""

    lake: Path
    page: Path
    attempts: int
    elapsed_s: float
    completeness: str
    is_whole: bool
    differences: list[Difference]
    answers: list[Answered]

    @property
    def is_true(self) -> bool:
        """Whether the report says what the workers counted, and the server too."""
        return self.is_whole and not self.differences


def demonstrate_tables(url: str, queue: str, tallies: Sequence[DemoCounts]) -> Tables:
    """Run the pipeline once, write the report, compare, and ask."""
    folder = _fresh_folder()
    lake = folder / "lake"
    started_s = time.perf_counter()
    done = _carry(url, queue, lake)
    elapsed_s = time.perf_counter() - started_s
    report = ask_report(lake)
    page = write_page(report, folder / PAGE_NAME)
    return _result(lake, page, report, done, tallies)._replace(elapsed_s=elapsed_s)


def _fresh_folder() -> Path:
    """A folder that outlives the demo: of this project, or a temporary one if that is refused."""
    try:
        own_directory(FOLDER.parent)
        shutil.rmtree(FOLDER, ignore_errors=True)
        own_directory(FOLDER)
    except (OSError, SettingsError):
        return Path(tempfile.mkdtemp(prefix="chasqui-demo-"))
    return FOLDER


def _carry(url: str, queue: str, lake: Path) -> PipelineRun:
    from chasquimq.settings import ConnectionSettings
    from chasquimq.spark.pipeline.pipeline import Pipeline
    from chasquimq.spark.pipeline.settings import PipelineSettings

    settings = PipelineSettings(
        lake=lake, queues=(queue,), connection=ConnectionSettings(url=url), slo=TARGETS_MS
    )
    with (
        spark_session(DEFAULT_MASTER, {}, is_reported=False) as session,
        working("reading the history") as say,
    ):
        return Pipeline(session, settings).once(lambda batch: say(batch_text(batch)))


def _result(
    lake: Path, page: Path, report: Report, done: PipelineRun, tallies: Sequence[DemoCounts]
) -> Tables:
    from chasquimq.spark.query.audit import completeness
    from chasquimq.spark.query.queries import Answers
    from chasquimq.spark.query.scope import Scope

    with Answers(lake) as answers:
        whole = completeness(answers, Scope())
        asked = [Answered(one, answers.sql(one.sql).dicts()) for one in QUESTIONS]
    return Tables(
        lake, page, done.rows, 0.0, whole.sentence(), whole.is_whole,
        differences(tallies, report), asked,
    )  # fmt: skip


def differences(tallies: Iterable[DemoCounts], report: Report) -> list[Difference]:
    """Where the report does not say what the workers counted by themselves."""
    counted = {
        what: sum((getattr(one, what) for one in tallies), Counter[str]()) for what in COUNTED
    }
    rows = {row["name"]: row for row in _rows(report)}
    names = sorted(rows.keys() | {name for counts in counted.values() for name in counts})
    pairs = (
        Difference(name, what, counted[what][name], rows.get(name, {}).get(what, 0))
        for name in names
        for what in COUNTED
    )
    return [pair for pair in pairs if pair.by_workers != pair.by_report]


def _rows(report: Report) -> list[dict[str, Any]]:
    sections = [one for one in report.sections if one.key == "throughput"]
    return [dict(row) for section in sections for grid in section.grids for row in grid.rows]


LIGHT_STEPS = (
    ("docs/tutorial/first-queue.md", "write a queue and a worker of your own"),
    ("{chasqui} server start", "keep a server for this directory"),
    ("{chasqui} bench --quick", "measure this machine"),
)


def print_tables(tables: Tables) -> None:
    """Print it for people."""
    click.echo("\nAnd from the other end: Spark read the history into tables")
    lines = {
        "read": f"{tables.attempts:,} attempts in {tables.elapsed_s:.1f} s, Spark's start included",
        "checked": "the report says what the workers counted, name by name",
        "complete": tables.completeness,
        "report": _near(tables.page),
    }
    if tables.differences:
        lines["checked"] = "the report does NOT say what the workers counted:"
    emit_pairs(lines.items())
    emit_table([one._asdict() for one in tables.differences])
    click.echo("\nThree questions, answered from the tables")
    for answered in tables.answers:
        click.echo(f"\n{answered.question.words}")
        emit_numbers(answered.rows)


def print_next_steps(tables: Tables | None) -> None:
    """Print what to do now."""
    # In a checkout the command is a file of it, and not on PATH.
    chasqui = "./chasqui" if Path("chasqui").is_file() else "chasqui"
    steps = [(what.format(chasqui=chasqui), why) for what, why in LIGHT_STEPS]
    if tables is not None:
        lake = _near(tables.lake)
        steps = [
            (_near(tables.page), "open it in a browser"),
            (f'{chasqui} pipeline sql "from silver_jobs" --lake {lake}', "ask more"),
            *steps,
        ]
    click.echo("\nTry next")
    emit_pairs(steps, indent="  ")


def tables_facts(tables: Tables) -> dict[str, Any]:
    """The same for programs."""
    return {
        "lake": str(tables.lake.absolute()),
        "page": str(tables.page),
        "attempts": tables.attempts,
        "elapsed_s": round(tables.elapsed_s, 2),
        "completeness": tables.completeness,
        "is_whole": tables.is_whole,
        "differences": [one._asdict() for one in tables.differences],
        "answers": [
            {"question": one.question.words, "rows": json_value(one.rows)} for one in tables.answers
        ],
    }


def _near(path: Path) -> str:
    """The path from here, where that is shorter."""
    return min(str(path), os.path.relpath(path), key=len)
