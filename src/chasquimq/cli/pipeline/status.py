"""Shows how far the tables are, what they lack, and whether something could be lost."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chasquimq.cli.context import json_option, redis_url_option, running_server
from chasquimq.cli.output.render import emit_json, emit_table, talk
from chasquimq.cli.output.terminal import working
from chasquimq.cli.pipeline.options import (
    READING,
    lake_option,
    need,
    queues_option,
    refuse_unknown_queues,
    trigger_option,
)
from chasquimq.cli.values import duration_text
from chasquimq.errors import StoreError
from chasquimq.model.json_value import json_value
from chasquimq.server.finder import find_server

if TYPE_CHECKING:
    from chasquimq.model.diagnosis import Diagnosis
    from chasquimq.spark.pipeline.retention import RetentionLook
    from chasquimq.spark.query.progress import Behind, Extent, Place


@click.command()
@lake_option
@redis_url_option
@json_option
def status(lake: Path, redis_url: str | None, as_json: bool) -> None:
    """Show the rows of each table, its newest fact, the last batch, the lag and the losses.

    A server that answers is asked what was not read yet; without one that is left open.
    """
    need(READING)
    from chasquimq.spark.query.audit import gaps
    from chasquimq.spark.query.progress import extents, places
    from chasquimq.spark.query.queries import Answers
    from chasquimq.spark.query.scope import Scope

    with Answers(lake) as answers:
        tables, ledger = extents(answers), gaps(answers, Scope())
    batches, unread = list(places(lake)), _unread(lake, redis_url)
    now = datetime.now(UTC)
    if as_json:
        emit_json(_facts(lake, tables, batches, unread, ledger, now))
        return
    emit_table([_table_row(one, now) for one in tables], optional=("files",))
    _emit_below([_batch_row(one, now) for one in batches])
    _emit_below([_queue_row(one) for one in unread])
    _emit_below([_gap_row(row) for row in ledger])
    if not ledger:
        talk("no loss is known")


def _emit_below(rows: list[dict[str, Any]]) -> None:
    if rows:
        click.echo()
        emit_table(rows)


def _unread(lake: Path, redis_url: str | None) -> list[Behind]:
    """What waits on the server; a server that is not there is reported and hides nothing else."""
    from chasquimq.settings import ConnectionSettings
    from chasquimq.spark.query.progress import behind

    url = find_server(redis_url).url
    if url is None:
        talk("no server is named or running, so it is not known what was not read yet")
        return []
    try:
        return behind(lake, ConnectionSettings(url=url))
    except StoreError as error:
        talk(f"it is not known what was not read yet: {error}")
        return []


def _age_ms(moment: datetime | None, now: datetime) -> int | None:
    return None if moment is None else max(0, round((now - moment).total_seconds() * 1000))


def _age_text(moment: datetime | None, now: datetime) -> str | None:
    age_ms = _age_ms(moment, now)
    return None if age_ms is None else f"{duration_text(age_ms)} ago"


def _table_row(one: Extent, now: datetime) -> dict[str, Any]:
    newest = _age_text(one.newest_at, now)
    return {"table": one.table, "rows": f"{one.rows:,}", "files": one.files, "newest": newest}


def _batch_row(one: Place, now: datetime) -> dict[str, Any]:
    return {"channel": one.channel, "last batch": one.batch_id, "done": _age_text(one.done_at, now)}


def _queue_row(one: Behind) -> dict[str, Any]:
    waiting, gone = (
        "not counted" if count is None else f"{count:,}" for count in (one.entries, one.gone)
    )
    row = {"queue": one.queue, "channel": one.channel, "entries not read yet": waiting}
    return row | {"already gone": gone}


def _gap_row(row: dict[str, Any]) -> dict[str, Any]:
    lost = "not known" if row["lost"] is None else f"{row['lost']:,} {row['unit']}"
    return {"queue": row["queue"], "channel": row["channel"], "cause": row["cause"], "lost": lost}


def _facts(
    lake: Path,
    tables: list[Extent],
    batches: list[Place],
    unread: list[Behind],
    ledger: list[dict[str, Any]],
    now: datetime,
) -> dict[str, Any]:
    return {
        "lake": str(lake.absolute()),
        "tables": [_table_facts(one, now) for one in tables],
        "batches": [_batch_facts(one) for one in batches],
        "unread": [one._asdict() for one in unread],
        "gaps": [{name: json_value(value) for name, value in row.items()} for row in ledger],
    }


def _table_facts(extent: Extent, now: datetime) -> dict[str, Any]:
    return {
        "table": extent.table,
        "rows": extent.rows,
        "files": extent.files,
        "newest_at": json_value(extent.newest_at),
        "lag_ms": _age_ms(extent.newest_at, now),
    }


def _batch_facts(place: Place) -> dict[str, Any]:
    return {
        "channel": place.channel,
        "batch_id": place.batch_id,
        "done_at": json_value(place.done_at),
        "offsets": {queue: str(offset) for queue, offset in place.offsets.items()},
    }


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
    problems = [finding for finding in findings if finding.is_problem]
    if as_json:
        emit_json({"ok": not problems, "checks": list(map(_finding_facts, findings))})
    else:
        _show(findings, problems)
    return EXIT_FINDINGS if problems else 0


def _about_streams(url: str, queues: tuple[str, ...], trigger_s: float) -> list[Diagnosis]:
    from chasquimq.settings import ConnectionSettings
    from chasquimq.spark.pipeline.retention import RetentionLook

    look = RetentionLook(ConnectionSettings(url=url))
    try:
        names = list(queues) or look.queues()
        return [finding for name in names for finding in _about_queue(look, name, trigger_s)]
    finally:
        look.close()


def _about_queue(look: RetentionLook, queue: str, trigger_s: float) -> list[Diagnosis]:
    """The channel that would be read: the history where there is one."""
    from chasquimq.model.diagnosis import warning
    from chasquimq.spark.pipeline.retention import advise

    kept = {one.channel: one for one in look.at(queue)}
    if not kept:
        missing = warning("channels", "neither a history nor events", "let a worker run a job")
        return [replace(missing, queue=queue)]
    read = kept.get("history") or kept["events"]
    return [replace(advise(read, trigger_s), queue=queue)]


def _about_unread(url: str, queues: tuple[str, ...], lake: Path) -> list[Diagnosis]:
    """What is gone already and was not read; the next batch writes it down as lost."""
    from chasquimq.model.diagnosis import error
    from chasquimq.settings import ConnectionSettings
    from chasquimq.spark.query.progress import behind

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


def _about_lake(lake: Path) -> list[Diagnosis]:
    """What was lost already; a lake that is not there yet has lost nothing."""
    from chasquimq.model.diagnosis import note, ok
    from chasquimq.spark.query.audit import gaps
    from chasquimq.spark.query.queries import Answers, has_tables
    from chasquimq.spark.query.scope import Scope

    if not has_tables(lake):
        return [note("lake", f"{lake} has no tables yet")]
    with Answers(lake) as answers:
        ledger = gaps(answers, Scope())
    if not ledger:
        return [ok("lake", "no loss is known")]
    lost = sum(row["lost"] or 0 for row in ledger)
    found = f"{lost:,} rows or entries are known to be lost, in {len(ledger)} kinds of gaps"
    return [note("lake", f"{found}; chasqui pipeline sql 'from bronze_gaps' lists them")]


def _show(findings: list[Diagnosis], problems: list[Diagnosis]) -> None:
    rows = [
        {"": MARKS[one.level], "queue": one.queue, "check": one.check, "found": one.found}
        for one in findings
    ]
    emit_table(rows, text=("found",))
    if not problems:
        talk("nothing to do")
        return
    click.echo("\nto do")
    todo = [{"queue": one.queue or one.check, "remedy": one.remedy} for one in problems]
    emit_table(todo, has_header=False, text=("remedy",))


def _finding_facts(finding: Diagnosis) -> dict[str, Any]:
    return {
        "queue": finding.queue,
        "check": finding.check,
        "level": finding.level,
        "found": finding.found,
        "remedy": finding.remedy or None,
    }
