"""`chasqui inspect`: how much of a queue is where."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from chasquimq.cli.options import group_option, json_option, queue_argument, redis_url_option
from chasquimq.cli.render import emit, emit_json
from chasquimq.cli.server_choice import running_server
from chasquimq.cli.visit import ask

if TYPE_CHECKING:
    from chasquimq.model.snapshot import Snapshot


@click.command()
@queue_argument
@group_option
@redis_url_option
@json_option
def inspect(queue: str, group: str, redis_url: str | None, as_json: bool) -> None:
    """Show how many jobs of QUEUE wait, run, are delayed, are dead and repeat."""
    url = running_server(redis_url)
    snapshot = ask(queue, url, lambda seen: seen.inspector.snapshot(queue, group))
    if as_json:
        emit_json(snapshot_facts(snapshot))
    else:
        emit(snapshot_rows(snapshot), as_json=False)


def snapshot_facts(snapshot: Snapshot) -> dict[str, Any]:
    """The snapshot for programs."""
    return {
        "queue": snapshot.queue,
        "group": snapshot.group,
        "group_created": snapshot.has_group,
        "at_ms": snapshot.at_ms,
        "stream_depth": snapshot.stream_depth,
        "pending": snapshot.pending,
        "dlq_depth": snapshot.dlq_depth,
        "delayed_depth": snapshot.delayed_depth,
        "oldest_delayed_lag_ms": snapshot.oldest_delayed_lag_ms,
        "repeatable_count": snapshot.repeatable_count,
    }


def snapshot_rows(snapshot: Snapshot) -> list[dict[str, Any]]:
    """The snapshot for people: what, and how much."""
    pending = str(snapshot.pending) if snapshot.has_group else "0 (group not created)"
    values: dict[str, Any] = {
        "stream depth": snapshot.stream_depth,
        "pending": pending,
        "DLQ depth": snapshot.dlq_depth,
        "delayed depth": snapshot.delayed_depth,
        "oldest delayed lag (ms)": snapshot.oldest_delayed_lag_ms,
        "repeatable count": snapshot.repeatable_count,
    }
    what, how_much = f"queue: {snapshot.queue}", f"group: {snapshot.group}"
    return [{what: name, how_much: value} for name, value in values.items()]
