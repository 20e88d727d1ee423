"""`chasqui queues`: every queue of a server, and how much is in each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from chasquimq.cli.inspect import snapshot_facts
from chasquimq.cli.options import group_option, json_option, redis_url_option
from chasquimq.cli.progress import progress_bar
from chasquimq.cli.render import emit_json, emit_table
from chasquimq.cli.server_choice import running_server
from chasquimq.cli.visit import run

if TYPE_CHECKING:
    from chasquimq.model.snapshot import Snapshot


@click.command()
@group_option
@redis_url_option
@json_option
def queues(group: str, redis_url: str | None, as_json: bool) -> None:
    """List all queues with their depths."""
    found = run(every_snapshot(running_server(redis_url), group))
    if as_json:
        emit_json([snapshot_facts(snapshot) for snapshot in found])
    elif found:
        emit_table(list(map(_row, found)))
    else:
        click.echo("this server has no queues", err=True)


async def every_snapshot(url: str, group: str) -> list[Snapshot]:
    """A snapshot of each queue that a scan finds."""
    from chasquimq.inspector import Inspector

    async with Inspector(redis_url=url) as inspector:
        with progress_bar("looking for queues") as advance:
            names = await inspector.queues(advance)
        return await inspector.snapshots(names, group)


def _row(snapshot: Snapshot) -> dict[str, Any]:
    return {
        "queue": snapshot.queue,
        "stream depth": snapshot.stream_depth,
        "pending": snapshot.pending,
        "DLQ depth": snapshot.dlq_depth,
        "delayed depth": snapshot.delayed_depth,
        "repeatable count": snapshot.repeatable_count,
    }
