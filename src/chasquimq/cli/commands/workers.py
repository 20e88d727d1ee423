"""`chasqui workers`: lists who works on a queue, and who is dead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from chasquimq.cli.context import (
    ask,
    group_option,
    json_option,
    lease_option,
    queue_argument,
    redis_url_option,
    running_server,
)
from chasquimq.cli.output.render import clean, emit_list
from chasquimq.cli.values import duration_text, interval_text, iso

if TYPE_CHECKING:
    from chasquimq.model.snapshot import WorkerSnapshot


@click.command()
@queue_argument
@group_option
@lease_option
@redis_url_option
@json_option
def workers(queue: str, group: str, lease_ms: int, redis_url: str | None, as_json: bool) -> None:
    """List the workers of QUEUE: what they hold, how long they have been silent, who is dead.

    Each says its lease, version and host itself. A silent one may still come back; what the dead
    hold is taken over by the next worker that reads. `parking` is no worker: what workers gave back
    when they left waits there for the next one. Workers of ChasquiMQ (Rust) say nothing of
    themselves: for them --lease is assumed.
    """
    url = running_server(redis_url)
    found = ask(queue, url, lambda seen: seen.inspector.workers(queue, group))
    facts = [_facts(one, lease_ms) for one in sorted(found, key=lambda one: one.name)]
    nothing = f"no worker of group {clean(group)} has been seen"
    emit_list(
        facts, as_json, facts=dict, row=_row, nothing=nothing, text=("its jobs",),
        optional=("started", "host", "version", "lease"),
    )  # fmt: skip


def _facts(one: WorkerSnapshot, lease_ms: int) -> dict[str, Any]:
    state = one.state(lease_ms)
    is_missed = state in ("silent", "dead") and one.pending > 0
    record = one.record
    return {
        "worker": one.name,
        "state": state,
        "pending": 0 if one.is_parking else one.pending,
        "parked": one.pending if one.is_parking else 0,
        "idle_ms": one.idle_ms,
        "silent_ms": None if one.is_parking else one.silent_ms,
        "taken_over_in_ms": one.taken_over_in_ms(lease_ms) if is_missed else None,
        "lease_ms": record and record.lease_ms,
        "version": record and record.version,
        "host": record and record.host,
        "pid": record and record.pid,
        "started_at_ms": record and record.started_at_ms,
        "concurrency": record and record.concurrency,
        "handlers": record and list(record.handlers),
        "handlers_left_out": record and record.handlers_left_out,
        "handles_all": record and record.handles_all,
        "supports": record and list(record.supports),
        "is_rust": one.is_rust,
    }


def _row(facts: dict[str, Any]) -> dict[str, Any]:
    silent_ms, lease_ms = facts["silent_ms"], facts["lease_ms"]
    return {key: facts[key] for key in ("worker", "state", "pending")} | {
        "silent": "-" if silent_ms is None else duration_text(silent_ms),
        "its jobs": _fate(facts),
        "lease": None if lease_ms is None else interval_text(lease_ms),
        "version": "ChasquiMQ (Rust)" if facts["is_rust"] else facts["version"],
        "host": facts["host"],
        "started": None if lease_ms is None else iso(facts["started_at_ms"]),
    }


def _fate(facts: dict[str, Any]) -> str | None:
    """What becomes of the jobs that it holds."""
    if facts["parked"]:
        return f"{facts['parked']:,} wait for the next worker"
    in_ms = facts["taken_over_in_ms"]
    if in_ms is None:
        return None
    return f"taken over in {duration_text(in_ms)}" if in_ms else "taken over by the next reader"
