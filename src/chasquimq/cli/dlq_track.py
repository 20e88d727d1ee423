"""What became of dead jobs that were sent back: written down beside the tables, asked of them."""

from __future__ import annotations

import secrets
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from chasquimq.cli.render import talk
from chasquimq.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FOLDER: Final = "_replays"
_SKEW: Final = timedelta(seconds=1)
_ENDED: Final = {"completed": "completed", "dead": "dead", "rejected": "dead"}


class Record(msgspec.Struct, frozen=True):
    """Jobs of one replay, and when it began."""

    replay: str
    queue: str
    replayed_at: datetime
    job_ids: list[str]


class Outcome(msgspec.Struct, frozen=True):
    """How many jobs of a replay did what since; `unseen` have no row in the tables yet."""

    replay: str
    replayed_at: datetime
    jobs: int
    completed: int
    dead: int
    under_way: int
    unseen: int


def write_record(
    lake: Path | None, queue: str, began_at: datetime, job_ids: Sequence[str]
) -> str | None:
    """Write a replay down, if there are tables that will tell of it; the answer is its name."""
    if lake is None or not job_ids or not (lake / "silver_attempts" / "_delta_log").is_dir():
        return None
    name = f"{began_at:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    path = lake / FOLDER / f"{name}.json"
    try:
        path.parent.mkdir(exist_ok=True)
        draft = path.with_suffix(".draft")
        draft.write_bytes(msgspec.json.encode(Record(name, queue, began_at, list(job_ids))))
        draft.replace(path)
    except OSError as error:
        talk(f"the replay was not written down for `chasqui dlq outcome`: {error}")
        return None
    return name


def outcomes(lake: Path, queue: str, last: int) -> list[Outcome]:
    """What became of the last replays of a queue, newest first.

    Raises:
        SettingsError: none of them was written down in this lake.
    """
    from chasquimq.spark.answers import Answers

    with Answers(lake) as answers:
        records = [one for one in _records(lake) if one.queue == queue]
        if not records:
            hint = "replay with the same --lake, then let the pipeline run"
            raise SettingsError("replay", queue, "a queue with a replay in this lake", hint=hint)
        return [
            _outcome(record, _last_ends(answers, record, _later(records[:at])))
            for at, record in enumerate(records[:last])
        ]


def _records(lake: Path) -> list[Record]:
    paths = sorted(lake.glob(f"{FOLDER}/*.json"), reverse=True)
    try:
        return [msgspec.json.decode(path.read_bytes(), type=Record) for path in paths]
    except msgspec.MsgspecError as error:
        hint = f"{error}; remove what is no record of a replay"
        raise SettingsError("lake", str(lake / FOLDER), "records of replays", hint=hint) from None


def _later(records: Sequence[Record]) -> dict[str, datetime]:
    """When each job was replayed next; the newest record comes first."""
    return {job_id: record.replayed_at for record in records for job_id in record.job_ids}


def _last_ends(answers: Any, record: Record, later: Mapping[str, datetime]) -> list[str]:
    """How each job ended last, before it was replayed again."""
    rows = answers.ask(
        """
        with jobs as (select unnest($job_ids) as job_id, unnest($untils) as until)
        select arg_max(outcome, ended_at) as outcome from silver_attempts join jobs using (job_id)
        where queue = $queue and ended_at >= $since and (until is null or ended_at < until)
        group by job_id
        """,
        queue=record.queue,
        # Their clocks and ours differ a little.
        since=record.replayed_at - _SKEW,
        job_ids=record.job_ids,
        untils=[later.get(job_id) for job_id in record.job_ids],
    )
    return [row["outcome"] for row in rows]


def _outcome(record: Record, ends: Sequence[str]) -> Outcome:
    kinds = [_ENDED.get(end, "under way") for end in ends]
    return Outcome(
        replay=record.replay,
        replayed_at=record.replayed_at,
        jobs=len(record.job_ids),
        completed=kinds.count("completed"),
        dead=kinds.count("dead"),
        under_way=kinds.count("under way"),
        unseen=len(record.job_ids) - len(kinds),
    )
