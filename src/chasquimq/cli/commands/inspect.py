"""`chasqui inspect` and `chasqui queues`: show how much of one queue, or of all, is where."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from chasquimq.cli.context import (
    LEASE_MS_DEFAULT,
    ask,
    group_option,
    json_option,
    queue_argument,
    redis_url_option,
    run,
    running_server,
)
from chasquimq.cli.output.render import (
    emit_json,
    emit_table,
    talk,
)
from chasquimq.cli.output.terminal import progress_bar
from chasquimq.errors import ServerRefused

if TYPE_CHECKING:
    from chasquimq.model.snapshot import Snapshot, WorkerState
    from chasquimq.queue.inspector import Inspector, Survey


@click.command()
@queue_argument
@group_option
@redis_url_option
@json_option
def inspect(queue: str, group: str, redis_url: str | None, as_json: bool) -> None:
    """Show how many jobs of QUEUE wait, run, are delayed, are dead and repeat, and who works."""
    url = running_server(redis_url)
    snapshot, states = ask(queue, url, lambda seen: look_at(seen.inspector, queue, group))
    if as_json:
        emit_json(snapshot_facts(snapshot) | {"workers": states})
    else:
        rows = [*snapshot_rows(snapshot), *more_rows(snapshot, states)]
        # What is counted may be wrapped, how much may not.
        emit_table(rows, text=list(rows[0])[:1])


async def look_at(
    inspector: Inspector, queue: str, group: str
) -> tuple[Snapshot, dict[WorkerState, int] | None]:
    """How much is where, and how many workers live; None where this user may not ask."""
    snapshot = await inspector.snapshot(queue, group)
    return snapshot, await count_workers(inspector, queue, group)


async def count_workers(
    inspector: Inspector, queue: str, group: str
) -> dict[WorkerState, int] | None:
    """How many workers live, are silent and are dead; None where this user may not ask."""
    try:
        found = await inspector.workers(queue, group)
    except ServerRefused as refused:
        if refused.code != "NOPERM":
            raise
        return None
    states = [one.state(LEASE_MS_DEFAULT) for one in found]
    return {state: states.count(state) for state in ("alive", "silent", "dead")}


def snapshot_facts(snapshot: Snapshot) -> dict[str, Any]:
    """The snapshot for programs."""
    return {
        "queue": snapshot.queue,
        "group": snapshot.group,
        "group_created": snapshot.has_group,
        "at_ms": snapshot.at_ms,
        "stream_depth": snapshot.stream_depth,
        "pending": snapshot.pending,
        "parked": snapshot.parked,
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
    return _titled(snapshot, values)


def more_rows(snapshot: Snapshot, states: dict[WorkerState, int] | None) -> list[dict[str, Any]]:
    """What ChasquiMQ (Rust) does not show."""
    known = [f"{count} {state}" for state, count in (states or {}).items() if count]
    workers = "this user may not ask" if states is None else ", ".join(known) or "none"
    return _titled(snapshot, {"given back, waiting": snapshot.parked, "workers": workers})


def _titled(snapshot: Snapshot, values: dict[str, Any]) -> list[dict[str, Any]]:
    what, how_much = f"queue: {snapshot.queue}", f"group: {snapshot.group}"
    return [{what: name, how_much: value} for name, value in values.items()]


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
    return report_broken(survey)


async def survey_all(url: str, group: str) -> Survey:
    """A snapshot of each queue that a scan finds."""
    from chasquimq.queue.inspector import Inspector

    async with Inspector(redis_url=url) as inspector:
        with progress_bar("looking for queues") as advance:
            return await inspector.survey_all(group, advance)


def report_broken(survey: Survey) -> int:
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
