"""Shows what became of replays."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from chasquimq.cli.dlq_track import Outcome
from chasquimq.cli.render import emit_json, emit_table


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
