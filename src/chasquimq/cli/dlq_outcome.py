"""Shows what became of replays."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from chasquimq.cli.dlq_track import Outcome
from chasquimq.cli.render import clean, emit_json, emit_table, talk


def show(found: Sequence[Outcome], queue: str, as_json: bool) -> None:
    if as_json:
        replays = [msgspec.to_builtins(one) for one in found]
        emit_json({"queue": queue, "replays": replays})
        return
    emit_table(
        [
            {
                "replay": one.replay,
                "replayed at": f"{one.replayed_at:%Y-%m-%d %H:%M:%S}",
                "jobs": one.jobs,
                "completed": one.completed,
                "dead again": one.dead,
                "under way": one.under_way,
                "not seen yet": one.unseen,
            }
            for one in found
        ]
    )
    for one in found:
        if one.state != "ended":
            talk(_unended(one, queue))


def _unended(one: Outcome, queue: str) -> str:
    sent = f"replay {one.replay} has sent {one.jobs:,} of {one.meant:,} jobs"
    if one.state == "running":
        return f"{sent} and goes on"
    return (
        f"{sent} for sure and was cut, so that a few more may be among them; the others are still "
        f"dead, and go when they are chosen again: chasqui dlq replay {clean(queue)}"
    )
