"""Records what a replay sends, and shows from the tables what became of it."""

from __future__ import annotations

import fcntl
import secrets
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Literal, NamedTuple

import click
import msgspec

from chasquimq.cli.context import json_option, queue_argument
from chasquimq.cli.output.render import clean, counted, emit_json, emit_table, talk
from chasquimq.cli.pipeline.options import READING, lake_option, need
from chasquimq.cli.values import AT_LEAST_1
from chasquimq.errors import PreconditionFailed
from chasquimq.spark.lake.durable import write_durably

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FOLDER: Final = "_replays"
_RECORD: Final = ".json"
_SENT: Final = ".sent"
_DRAFT: Final = ".draft"

State = Literal["ended", "running", "cut"]


@click.command()
@queue_argument
@click.option("--last", type=AT_LEAST_1, default=1, show_default=True, help="How many replays.")
@lake_option
@json_option
def outcome(queue: str, last: int, lake: Path, as_json: bool) -> None:
    """Show what became of dead jobs of QUEUE that were sent back, from the tables of a lake."""
    need(READING, "dlq outcome")
    _show(outcomes(lake, queue, last), queue, as_json)


class ReplayRecord(msgspec.Struct, frozen=True):
    """One replay and when it began; `job_ids` are meant until it ended, and then those it sent."""

    replay: str
    queue: str
    replayed_at: datetime
    job_ids: list[str]
    is_ended: bool = True


class Seen(NamedTuple):
    """A replay as it was at one moment; of one that was cut a few more may be sent than noted."""

    record: ReplayRecord
    state: State
    sent: set[str]


class ReplayRecorder:
    """Writes one replay down as it goes, so that a kill leaves what was meant and what was sent.

    Where a lake has no tables that could show it, or cannot be written to, it does nothing.
    """

    def __init__(self, lake: Path | None, queue: str, began_at: datetime) -> None:
        name = f"{began_at:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
        self._record = ReplayRecord(name, queue, began_at, [])
        has_tables = lake is not None and (lake / "silver_attempts" / "_delta_log").is_dir()
        self._path = lake / FOLDER / f"{name}{_RECORD}" if lake and has_tables else None
        self._log: BinaryIO | None = None

    def begin(self, job_ids: Sequence[str]) -> None:
        """Write down which jobs are meant, before the first of them moves."""
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(exist_ok=True)
            self._log = self._path.with_suffix(_SENT).open("wb", buffering=0)
            # Held as long as this process lives, and before there is a record to ask about.
            fcntl.flock(self._log, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._write(self._path, job_ids, is_ended=False)
        except OSError as error:
            self._give_up(self._path, error)

    def note(self, job_ids: Sequence[str]) -> None:
        """Write down that these were sent."""
        if self._path is None or self._log is None:
            return
        try:
            self._log.write(msgspec.json.encode(job_ids) + b"\n")
        except OSError as error:
            self._give_up(self._path, error)

    def end(self, job_ids: Sequence[str]) -> str | None:
        """Write down which jobs were sent in all; the answer is the name of the record."""
        if self._path is None or self._log is None:
            return None
        if not job_ids:
            self._forget(self._path)
            return None
        try:
            self._write(self._path, job_ids, is_ended=True)
        except OSError as error:
            self._give_up(self._path, error)
            return None
        with suppress(OSError):
            # The notes of a replay that ended are not needed.
            self._path.with_suffix(_SENT).unlink()
        self._close()
        return self._record.replay

    def _write(self, path: Path, job_ids: Sequence[str], *, is_ended: bool) -> None:
        record = msgspec.structs.replace(self._record, job_ids=list(job_ids), is_ended=is_ended)
        write_durably(path, msgspec.json.encode(record))

    def _give_up(self, path: Path, error: OSError) -> None:
        talk(f"the replay is not written down for `chasqui dlq outcome`: {error}")
        self._forget(path)

    def _forget(self, path: Path) -> None:
        """Leave nothing, for a record without an end would count as a replay that was cut."""
        for suffix in (_RECORD, _SENT, _DRAFT):
            with suppress(OSError):
                path.with_suffix(suffix).unlink()
        self._close()

    def _close(self) -> None:
        """Let go of the lock, once the record is as it stays."""
        if self._log is not None:
            self._log.close()
        self._log = None


def replays(lake: Path) -> list[Seen]:
    """All replays of a lake as they are now, newest first.

    Raises:
        SettingsError: there is a file among their records that is none.
    """
    paths = sorted(lake.glob(f"{FOLDER}/*{_RECORD}"))
    try:
        seen = [_seen(path) for path in paths]
    except msgspec.MsgspecError as error:
        hint = f"{error}; remove what is no record of a replay"
        raise PreconditionFailed(
            "lake", str(lake / FOLDER), "records of replays", hint=hint
        ) from None
    found = [one for one in seen if one is not None]
    # The names say no more than the second in which each began.
    return sorted(found, key=lambda one: one.record.replayed_at, reverse=True)


def _seen(path: Path) -> Seen | None:
    record = _read(path)
    if record is None or record.is_ended:
        return _ended(record)
    noted = set[str]()
    with suppress(FileNotFoundError), path.with_suffix(_SENT).open("rb") as log:
        is_running = _is_held(log)
        noted.update(_noted(log.read()))
        if is_running:
            return Seen(record, "running", noted)
    # Its process is gone: what it left is as it stays, and may be more than was read before.
    last = _read(path)
    if last is None or last.is_ended:
        return _ended(last)
    return Seen(last, "cut", noted)


def _read(path: Path) -> ReplayRecord | None:
    """None: there is none any more, as of a replay that sent nothing."""
    with suppress(FileNotFoundError):
        return msgspec.json.decode(path.read_bytes(), type=ReplayRecord)
    return None


def _ended(record: ReplayRecord | None) -> Seen | None:
    return record and Seen(record, "ended", set(record.job_ids))


def _is_held(log: BinaryIO) -> bool:
    try:
        fcntl.flock(log, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _noted(lines: bytes) -> Iterator[str]:
    with suppress(msgspec.DecodeError):
        # A last line that was cut is none.
        for line in lines.splitlines():
            yield from msgspec.json.decode(line, type=list[str])


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
    from chasquimq.spark.query.queries import Answers

    with Answers(lake) as answers:
        # Before the tables are asked, so that a replay that ends meanwhile is shown as it was.
        found = [one for one in replays(lake) if one.record.queue == queue]
        if not found:
            hint = "replay with the same --lake, then let the pipeline run"
            raise PreconditionFailed(
                "replay", queue, "a queue with a replay in this lake", hint=hint
            )
        return [
            _outcome(seen, _last_ends(answers, seen.record, _later(found[:at])))
            for at, seen in enumerate(found[:last])
        ]


def _later(newer: Sequence[Seen]) -> dict[str, datetime]:
    """When each job was replayed next; the newest record comes first."""
    records = [seen.record for seen in newer]
    return {job_id: record.replayed_at for record in records for job_id in record.job_ids}


def _last_ends(answers: Any, record: ReplayRecord, later: Mapping[str, datetime]) -> dict[str, str]:
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


def _show(found: Sequence[Outcome], queue: str, as_json: bool) -> None:
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
    sent = f"replay {one.replay} has sent {one.jobs:,} of {counted(one.meant, 'job')}"
    if one.state == "running":
        return f"{sent} and goes on"
    return (
        f"{sent} for sure and was cut, so that a few more may be among them; the others are still "
        f"dead, and go when they are chosen again: chasqui dlq replay {clean(queue)}"
    )
