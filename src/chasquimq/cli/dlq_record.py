"""What a replay is about to send and has sent, written beside the tables that will tell the rest."""

from __future__ import annotations

import fcntl
import secrets
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, Literal

import msgspec

from chasquimq.cli.render import talk
from chasquimq.errors import SettingsError
from chasquimq.spark.durable import write_durably

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

FOLDER: Final = "_replays"
_RECORD: Final = ".json"
_SENT: Final = ".sent"

State = Literal["ended", "running", "cut"]


class Record(msgspec.Struct, frozen=True):
    """One replay and when it began; `job_ids` are meant until it ended, and then those it sent."""

    replay: str
    queue: str
    replayed_at: datetime
    job_ids: list[str]
    is_ended: bool = True


class Recorder:
    """Writes one replay down as it goes, so that a kill leaves what was meant and what was sent.

    Where a lake has no tables that could tell of it, or cannot be written to, it does nothing.
    """

    def __init__(self, lake: Path | None, queue: str, began_at: datetime) -> None:
        name = f"{began_at:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
        self._record = Record(name, queue, began_at, [])
        has_tables = lake is not None and (lake / "silver_attempts" / "_delta_log").is_dir()
        self._path = lake / FOLDER / f"{name}{_RECORD}" if lake and has_tables else None
        self._log: BinaryIO | None = None

    def begin(self, job_ids: Sequence[str]) -> None:
        """Write down which jobs are meant, before the first of them moves."""
        if self._path is None:
            return
        try:
            self._write(self._path, job_ids, is_ended=False)
            self._log = self._path.with_suffix(_SENT).open("wb", buffering=0)
            # Held as long as this process lives, so that others see whether it does.
            fcntl.flock(self._log, fcntl.LOCK_EX)
        except OSError as error:
            self._give_up(error)

    def note(self, job_ids: Sequence[str]) -> None:
        """Write down that these were sent."""
        if self._log is None:
            return
        try:
            self._log.write(msgspec.json.encode(job_ids) + b"\n")
        except OSError as error:
            self._give_up(error)

    def end(self, job_ids: Sequence[str]) -> str | None:
        """Write down which jobs were sent in all; the answer is the name of the record."""
        if self._path is None or self._log is None:
            return None
        try:
            if job_ids:
                self._write(self._path, job_ids, is_ended=True)
            else:
                self._path.unlink()
            self._path.with_suffix(_SENT).unlink()
        except OSError as error:
            self._give_up(error)
            return None
        self._log.close()
        return self._record.replay if job_ids else None

    def _write(self, path: Path, job_ids: Sequence[str], *, is_ended: bool) -> None:
        record = msgspec.structs.replace(self._record, job_ids=list(job_ids), is_ended=is_ended)
        write_durably(path, msgspec.json.encode(record))

    def _give_up(self, error: OSError) -> None:
        talk(f"the replay is not written down for `chasqui dlq outcome`: {error}")
        if self._log is not None:
            self._log.close()
        self._log = None


def records(lake: Path) -> list[Record]:
    """All replays of a lake, newest first.

    Raises:
        SettingsError: there is a file among them that is none.
    """
    paths = sorted(lake.glob(f"{FOLDER}/*{_RECORD}"), reverse=True)
    try:
        return [msgspec.json.decode(path.read_bytes(), type=Record) for path in paths]
    except msgspec.MsgspecError as error:
        hint = f"{error}; remove what is no record of a replay"
        raise SettingsError("lake", str(lake / FOLDER), "records of replays", hint=hint) from None


def state_of(lake: Path, record: Record) -> State:
    """Whether a replay ended, goes on, or was cut by the end of its process."""
    if record.is_ended:
        return "ended"
    try:
        with _log_path(lake, record).open("rb") as log:
            fcntl.flock(log, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return "running"
    except FileNotFoundError:
        pass
    return "cut"


def sent_ids(lake: Path, record: Record) -> set[str]:
    """The jobs that a replay wrote down as sent; of one that was cut a few more may be."""
    return set(record.job_ids if record.is_ended else _noted(_log_path(lake, record)))


def _noted(path: Path) -> Iterator[str]:
    with suppress(FileNotFoundError, msgspec.DecodeError):
        # A last line that was cut is none.
        for line in path.read_bytes().splitlines():
            yield from msgspec.json.decode(line, type=list[str])


def _log_path(lake: Path, record: Record) -> Path:
    return lake / FOLDER / f"{record.replay}{_SENT}"
