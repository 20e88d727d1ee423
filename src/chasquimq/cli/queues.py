"""`chasqui queues`: every queue of a server, and how much is in each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from chasquimq.cli.inspect import snapshot_facts
from chasquimq.cli.options import group_option, json_option, redis_url_option
from chasquimq.cli.progress import progress_bar
from chasquimq.cli.render import emit_json, emit_table, talk
from chasquimq.cli.server_choice import running_server
from chasquimq.cli.visit import run

if TYPE_CHECKING:
    from chasquimq.inspector import Survey
    from chasquimq.model.snapshot import Snapshot


@click.command()
@group_option
@redis_url_option
@json_option
def queues(group: str, redis_url: str | None, as_json: bool) -> int:
    """List all queues with their depths; exit code 1 when one of them is broken."""
    survey = run(survey_all(running_server(redis_url), group))
    if as_json:
        emit_json([snapshot_facts(snapshot) for snapshot in survey.snapshots])
    elif survey.snapshots:
        emit_table(list(map(_row, survey.snapshots)))
    elif not survey.broken:
        click.echo("this server has no queues", err=True)
    return tell_broken(survey)


async def survey_all(url: str, group: str) -> Survey:
    """A snapshot of each queue that a scan finds."""
    from chasquimq.inspector import Inspector

    async with Inspector(redis_url=url) as inspector:
        with progress_bar("looking for queues") as advance:
            return await inspector.survey_all(group, advance)


def tell_broken(survey: Survey) -> int:
    """Name what could not be looked at; the answer is the exit code."""
    for wrong in survey.broken:
        talk(f"error: {wrong}; rename or delete the key")
    for silence in survey.silences:
        talk(f"error: {silence}")
    return 1 if survey.broken or survey.silences else 0


def _row(snapshot: Snapshot) -> dict[str, Any]:
    return {
        "queue": snapshot.queue,
        "stream depth": snapshot.stream_depth,
        "pending": snapshot.pending,
        "DLQ depth": snapshot.dlq_depth,
        "delayed depth": snapshot.delayed_depth,
        "repeatable count": snapshot.repeatable_count,
    }
