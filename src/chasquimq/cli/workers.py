"""`chasqui workers`: who works on a queue, what each holds, and who is dead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from chasquimq.cli.duration import duration_text
from chasquimq.cli.listing import emit_list
from chasquimq.cli.options import (
    group_option,
    json_option,
    lease_option,
    queue_argument,
    redis_url_option,
)
from chasquimq.cli.render import clean
from chasquimq.cli.server_choice import running_server
from chasquimq.cli.visit import ask

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

    What the dead hold is taken over by the next worker that reads. `parking` is no worker:
    it keeps what workers gave back when they left.
    """
    url = running_server(redis_url)
    found = ask(queue, url, lambda seen: seen.inspector.workers(queue, group))
    facts = [_facts(one, lease_ms) for one in sorted(found, key=lambda one: one.name)]
    nothing = f"no worker of group {clean(group)} has been seen"
    emit_list(facts, as_json, facts=dict, row=_row, nothing=nothing)


def _facts(one: WorkerSnapshot, lease_ms: int) -> dict[str, Any]:
    return {
        "worker": one.name,
        "state": one.state(lease_ms),
        "pending": one.pending,
        "idle_ms": one.idle_ms,
    }


def _row(facts: dict[str, Any]) -> dict[str, Any]:
    idle_ms = facts["idle_ms"]
    shown = "-" if facts["state"] == "parking" else duration_text(idle_ms)
    return {key: facts[key] for key in ("worker", "state", "pending")} | {"idle": shown}
