"""The last part of the demo: Spark carries the history into tables, and the tables answer."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from chasquimq.cli.demo_questions import QUESTIONS, Question
from chasquimq.cli.demo_tally import Tally
from chasquimq.cli.pipeline_needs import spark_session
from chasquimq.cli.pipeline_options import DEFAULT_MASTER
from chasquimq.cli.pipeline_report import PAGE_NAME, ask_report, write_page
from chasquimq.cli.pipeline_talk import batch_text, working
from chasquimq.errors import SettingsError
from chasquimq.server.own_files import own_directory

if TYPE_CHECKING:
    from chasquimq.spark.pipeline_settings import PipelineRun
    from chasquimq.spark.report_shape import Report

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

    question: Question
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


def demonstrate_tables(url: str, queue: str, tallies: Sequence[Tally]) -> Tables:
    """Run the pipeline once, write the report, compare, and ask."""
    folder = _fresh_folder()
    lake = folder / "lake"
    started_s = time.perf_counter()
    done = _carry(url, queue, lake)
    elapsed_s = time.perf_counter() - started_s
    report = ask_report(lake)
    page = write_page(report, folder / PAGE_NAME)
    return _told(lake, page, report, done, tallies)._replace(elapsed_s=elapsed_s)


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
    from chasquimq.spark.pipeline import Pipeline
    from chasquimq.spark.pipeline_settings import PipelineSettings

    settings = PipelineSettings(
        lake=lake, queues=(queue,), connection=ConnectionSettings(url=url), slo=TARGETS_MS
    )
    with (
        spark_session(DEFAULT_MASTER, {}, is_told=False) as session,
        working("reading the history") as say,
    ):
        return Pipeline(session, settings).once(lambda batch: say(batch_text(batch)))


def _told(
    lake: Path, page: Path, report: Report, done: PipelineRun, tallies: Sequence[Tally]
) -> Tables:
    from chasquimq.spark.answers import Answers
    from chasquimq.spark.answers_audit import completeness
    from chasquimq.spark.answers_scope import Scope

    with Answers(lake) as answers:
        whole = completeness(answers, Scope())
        asked = [Answered(one, answers.sql(one.sql).dicts()) for one in QUESTIONS]
    return Tables(
        lake, page, done.rows, 0.0, whole.sentence(), whole.is_whole,
        differences(tallies, report), asked,
    )  # fmt: skip


def differences(tallies: Iterable[Tally], report: Report) -> list[Difference]:
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
