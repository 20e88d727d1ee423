"""`chasqui pipeline check`: whether a pipeline can keep up, and what to set where it cannot."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chasquimq.cli.options import json_option, redis_url_option
from chasquimq.cli.pipeline_needs import READING, need, refuse_unknown_queues
from chasquimq.cli.pipeline_options import lake_option, queues_option, trigger_option
from chasquimq.cli.pipeline_talk import working
from chasquimq.cli.render import emit_json, emit_table, talk
from chasquimq.cli.server_choice import running_server

if TYPE_CHECKING:
    from chasquimq.model.finding import Finding
    from chasquimq.spark.retention import RetentionLook

EXIT_FINDINGS = 1
MARKS = {"ok": "ok", "note": "note", "warning": "WARNING", "error": "ERROR"}


@click.command()
@queues_option
@lake_option
@trigger_option
@redis_url_option
@json_option
def check(
    *,
    queues: tuple[str, ...],
    lake: Path,
    trigger_ms: int,
    redis_url: str | None,
    as_json: bool,
) -> int:
    """Compare how long queues keep their history with how often it is read.

    Exit code 1 when something could be lost; then it says what to set. It changes nothing.
    """
    need(READING)
    url = running_server(redis_url)
    refuse_unknown_queues(url, queues)
    with working("looking at the streams"):
        findings = [
            *_about_streams(url, queues, trigger_ms / 1000),
            *_about_unread(url, queues, lake),
            *_about_lake(lake),
        ]
    troubles = [finding for finding in findings if finding.is_trouble]
    if as_json:
        emit_json({"ok": not troubles, "checks": list(map(_facts, findings))})
    else:
        _show(findings, troubles)
    return EXIT_FINDINGS if troubles else 0


def _about_streams(url: str, queues: tuple[str, ...], trigger_s: float) -> list[Finding]:
    from chasquimq.settings import ConnectionSettings
    from chasquimq.spark.retention import RetentionLook

    look = RetentionLook(ConnectionSettings(url=url))
    try:
        names = list(queues) or look.queues()
        return [finding for name in names for finding in _about_queue(look, name, trigger_s)]
    finally:
        look.close()


def _about_queue(look: RetentionLook, queue: str, trigger_s: float) -> list[Finding]:
    """The channel that would be read: the history where there is one."""
    from chasquimq.model.finding import warning
    from chasquimq.spark.retention_advice import advise

    kept = {one.channel: one for one in look.at(queue)}
    if not kept:
        missing = warning("channels", "neither a history nor events", "let a worker run a job")
        return [replace(missing, queue=queue)]
    read = kept.get("history") or kept["events"]
    return [replace(advise(read, trigger_s), queue=queue)]


def _about_unread(url: str, queues: tuple[str, ...], lake: Path) -> list[Finding]:
    """What is gone already and was not read; the next batch writes it down as lost."""
    from chasquimq.model.finding import error
    from chasquimq.settings import ConnectionSettings
    from chasquimq.spark.answers_progress import behind

    remedy = "let the pipeline run all the time, or keep more"
    return [
        replace(
            error(one.channel, f"{_entries(one.gone)} gone before they were read", remedy),
            queue=one.queue,
        )
        for one in behind(lake, ConnectionSettings(url=url))
        if one.gone and (not queues or one.queue in queues)
    ]


def _entries(count: int) -> str:
    return "1 entry was" if count == 1 else f"{count:,} entries were"


def _about_lake(lake: Path) -> list[Finding]:
    """What was lost already; a lake that is not there yet has lost nothing."""
    from chasquimq.model.finding import note, ok
    from chasquimq.spark.answers import Answers, has_tables
    from chasquimq.spark.answers_audit import gaps
    from chasquimq.spark.answers_scope import Scope

    if not has_tables(lake):
        return [note("lake", f"{lake} has no tables yet")]
    with Answers(lake) as answers:
        ledger = gaps(answers, Scope())
    if not ledger:
        return [ok("lake", "no loss is known")]
    lost = sum(row["lost"] or 0 for row in ledger)
    found = f"{lost:,} rows or entries are known to be lost, in {len(ledger)} kinds of gaps"
    return [note("lake", f"{found}; chasqui pipeline sql 'from bronze_gaps' lists them")]


def _show(findings: list[Finding], troubles: list[Finding]) -> None:
    rows = [
        {"": MARKS[one.level], "queue": one.queue, "check": one.check, "found": one.found}
        for one in findings
    ]
    emit_table(rows, text=("found",))
    if not troubles:
        talk("nothing to do")
        return
    click.echo("\nto do")
    todo = [{"queue": one.queue or one.check, "remedy": one.remedy} for one in troubles]
    emit_table(todo, has_header=False, text=("remedy",))


def _facts(finding: Finding) -> dict[str, Any]:
    return {
        "queue": finding.queue,
        "check": finding.check,
        "level": finding.level,
        "found": finding.found,
        "remedy": finding.remedy or None,
    }
