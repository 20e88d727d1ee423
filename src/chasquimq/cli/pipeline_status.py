"""`chasqui pipeline status`: how far the tables are, and what they lack."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chasquimq.cli.duration import duration_text
from chasquimq.cli.options import json_option, redis_url_option
from chasquimq.cli.pipeline_needs import READING, need
from chasquimq.cli.pipeline_options import lake_option
from chasquimq.cli.render import emit_json, emit_table, talk
from chasquimq.errors import StoreError
from chasquimq.model.json_value import json_value
from chasquimq.server.finder import find_server

if TYPE_CHECKING:
    from chasquimq.spark.answers_progress import Behind, Extent, Place


@click.command()
@lake_option
@redis_url_option
@json_option
def status(lake: Path, redis_url: str | None, as_json: bool) -> None:
    """Show the rows of each table, its newest fact, the last batch, the lag and the losses.

    A server that answers is asked what was not read yet; without one that is left open.
    """
    need(READING)
    from chasquimq.spark.answers import Answers
    from chasquimq.spark.answers_audit import gaps
    from chasquimq.spark.answers_progress import extents, places
    from chasquimq.spark.answers_scope import Scope

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
    """What waits on the server; a server that is not there is told and hides nothing else."""
    from chasquimq.settings import ConnectionSettings
    from chasquimq.spark.answers_progress import behind

    url = find_server(redis_url).url
    if url is None:
        talk("no server is named or running, so it is not known what was not read yet")
        return []
    try:
        return behind(lake, ConnectionSettings(url=url))
    except StoreError as trouble:
        talk(f"it is not known what was not read yet: {trouble}")
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
    told = {"queue": one.queue, "channel": one.channel, "entries not read yet": waiting}
    return told | {"already gone": gone}


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
