"""What became of dead jobs that were sent back: asked of the tables, by what was written down."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from chasquimq.cli.dlq_record import Record, Seen, State, replays
from chasquimq.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SKEW: Final = timedelta(seconds=1)
_ENDED: Final = {"completed": "completed", "dead": "dead", "rejected": "dead"}


class Outcome(msgspec.Struct, frozen=True):
    """How many jobs of a replay did what since; `unseen` have no row in the tables yet.

    `jobs` were sent for sure, of `meant`; only a replay that was cut has more that may be.
    """

    replay: str
    replayed_at: datetime
    state: State
    meant: int
    jobs: int
    completed: int
    dead: int
    under_way: int
    unseen: int


def outcomes(lake: Path, queue: str, last: int) -> list[Outcome]:
    """What became of the last replays of a queue, newest first.

    Raises:
        SettingsError: none of them was written down in this lake.
    """
    from chasquimq.spark.answers import Answers

    with Answers(lake) as answers:
        # Before the tables are asked, so that a replay that ends meanwhile is told as it was.
        found = [one for one in replays(lake) if one.record.queue == queue]
        if not found:
            hint = "replay with the same --lake, then let the pipeline run"
            raise SettingsError("replay", queue, "a queue with a replay in this lake", hint=hint)
        return [
            _outcome(seen, _last_ends(answers, seen.record, _later(found[:at])))
            for at, seen in enumerate(found[:last])
        ]


def _later(newer: Sequence[Seen]) -> dict[str, datetime]:
    """When each job was replayed next; the newest record comes first."""
    records = [seen.record for seen in newer]
    return {job_id: record.replayed_at for record in records for job_id in record.job_ids}


def _last_ends(answers: Any, record: Record, later: Mapping[str, datetime]) -> dict[str, str]:
    """How each job ended last, before it was replayed again."""
    rows = answers.ask(
        """
        with jobs as (select unnest($job_ids) as job_id, unnest($untils) as until)
        select job_id, arg_max(outcome, ended_at) as outcome
        from silver_attempts join jobs using (job_id)
        where queue = $queue and ended_at >= $since and (until is null or ended_at < until)
        group by job_id
        """,
        queue=record.queue,
        # Their clocks and ours differ a little.
        since=record.replayed_at - _SKEW,
        job_ids=record.job_ids,
        untils=[later.get(job_id) for job_id in record.job_ids],
    )
    return {row["job_id"]: row["outcome"] for row in rows}


def _outcome(seen: Seen, ends: Mapping[str, str]) -> Outcome:
    record = seen.record
    kinds = [_ENDED.get(end, "under way") for end in ends.values()]
    # A dead job that ran was sent, also where a kill came before that was written down.
    jobs = len(seen.sent | ends.keys())
    return Outcome(
        replay=record.replay,
        replayed_at=record.replayed_at,
        state=seen.state,
        meant=len(record.job_ids),
        jobs=jobs,
        completed=kinds.count("completed"),
        dead=kinds.count("dead"),
        under_way=kinds.count("under way"),
        unseen=jobs - len(kinds),
    )
