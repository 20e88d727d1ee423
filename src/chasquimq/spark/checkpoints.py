"""Where a pipeline keeps what it needs to go on: one place a channel, one pipeline a lake."""

from __future__ import annotations

import fcntl
import secrets
from collections.abc import Generator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Final

from chasquimq.errors import SettingsError
from chasquimq.spark.manifest import ManifestFile

# Readers of tables leave alone what begins with an underscore.
_FOLDER: Final = "_pipeline"


class Checkpoint:
    """The place of one channel: Spark's offsets, the manifest under way, files for a moment."""

    def __init__(self, lake: Path, channel: str) -> None:
        self._folder = lake / _FOLDER / channel
        self.pending = ManifestFile(self._folder / "pending.manifest")
        self.staging = self._folder / "staging"

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
        """Who numbers the batches: whoever begins anew counts from 0 and must not look done."""
        path = self._folder / "app_id"
        if self.has_begun and path.is_file():
            return path.read_text().strip()
        self._folder.mkdir(parents=True, exist_ok=True)
        made = secrets.token_hex(6)
        path.write_text(made)
        return made


@contextmanager
def only_pipeline(lake: Path) -> Generator[None]:
    """Hold a lake for one pipeline; the lock goes with the process, however it ends.

    Raises:
        SettingsError: another pipeline has it, or the folder cannot be written to.
    """
    path = lake / _FOLDER / "lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a")
    except OSError as error:
        hint = "give it to the user that runs the pipeline, or name another with --lake"
        raise SettingsError("lake", str(lake), "a folder to write to", hint=hint) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            hint = "stop the other pipeline, or name another folder with --lake"
            rule = "the lake of one pipeline at a time"
            raise SettingsError("lake", str(lake), rule, hint=hint) from None
        yield
