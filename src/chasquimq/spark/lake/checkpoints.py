"""Where a pipeline keeps what it needs to go on: one place a channel, one pipeline a lake."""

from __future__ import annotations

import fcntl
import secrets
import shutil
from collections.abc import Generator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from chasquimq.errors import PreconditionFailed
from chasquimq.spark.lake.durable import write_durably
from chasquimq.spark.lake.files import unwritable
from chasquimq.spark.lake.manifest import ManifestFile

if TYPE_CHECKING:
    from chasquimq.spark.lake.lake import Lake

# Readers of tables leave alone what begins with an underscore.
_FOLDER: Final = "_pipeline"
_STAGING: Final = "staging"


def own_folder(lake: Path) -> Path:
    """Where a lake has all that is no table."""
    return lake / _FOLDER


def pending_files(lake: Path) -> list[ManifestFile]:
    """Every manifest of a lake that is under way, of every writer."""
    return [ManifestFile(path) for path in sorted(own_folder(lake).glob("**/*.manifest"))]


def settle_all(lake: Lake) -> None:
    """End what writers before this one had decided to do, and forget what they only needed then."""
    for pending in pending_files(lake.path):
        pending.settle(lake)
    for staging in own_folder(lake.path).glob(f"*/{_STAGING}"):
        shutil.rmtree(staging, ignore_errors=True)


class Checkpoint:
    """The place of one channel: Spark's offsets, the manifest under way, files for a moment."""

    def __init__(self, lake: Path, channel: str) -> None:
        self._folder = own_folder(lake) / channel
        self.pending = ManifestFile(self._folder / "pending.manifest")
        self.staging = self._folder / _STAGING

    @property
    def location(self) -> str:
        """Where Spark writes how far it has come."""
        return str(self._folder / "checkpoint")

    @property
    def has_begun(self) -> bool:
        """Whether any batch was ever planned here."""
        offsets = self._folder / "checkpoint" / "offsets"
        return offsets.is_dir() and any(name.name.isdecimal() for name in offsets.iterdir())

    @cached_property
    def app_id(self) -> str:
        """Who numbers the batches: a query that begins again counts from 0 and must not look done."""
        path = self._folder / "app_id"
        if self.has_begun and path.is_file():
            return path.read_text().strip()
        made = secrets.token_hex(6)
        write_durably(path, made.encode())
        return made


@contextmanager
def only_pipeline(lake: Lake) -> Generator[None]:
    """Hold a lake for one pipeline, every table there and whole.

    Raises:
        SettingsError: another pipeline has it, or the folder cannot be written to.
    """
    with _locked(lake.path):
        lake.create_missing()
        # Whatever is counted, replaced or gone on from must not be half of a batch.
        settle_all(lake)
        yield


@contextmanager
def reserved(lake: Path) -> Generator[None]:
    """Keep other commands off a lake from before Spark starts; what was made for it goes again.

    Raises:
        SettingsError: another pipeline has it, or starts, or the folder cannot be written to.
    """
    place = own_folder(lake)
    made = [path for path in (place, lake, *lake.parents) if not path.exists()]
    path = place / "reserved"
    with _opened(lake, path) as file:
        _lock(lake, file)
        try:
            _refuse_held(lake)
            yield
        finally:
            path.unlink(missing_ok=True)
            with suppress(OSError):
                # The first that holds anything by now ends it.
                for folder in made:
                    folder.rmdir()


def _refuse_held(lake: Path) -> None:
    """A look takes the lock for a moment: only who reserved a lake may, so that none is in the way."""
    path = _lock_path(lake)
    if path.is_file():
        with _opened(lake, path) as file:
            _lock(lake, file)


@contextmanager
def _locked(lake: Path) -> Generator[None]:
    """The lock goes with the process, however it ends."""
    with _opened(lake, _lock_path(lake)) as file:
        _lock(lake, file)
        yield


def _lock_path(lake: Path) -> Path:
    return own_folder(lake) / "lock"


def _opened(lake: Path, path: Path) -> TextIO:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a")
    except OSError as error:
        raise unwritable(lake) from error


def _lock(lake: Path, file: TextIO) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        hint = "stop the other pipeline, or name another folder with --lake"
        rule = "the lake of one pipeline at a time"
        raise PreconditionFailed("lake", str(lake), rule, hint=hint) from None
