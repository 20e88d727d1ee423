"""The folder of a session: gone with its process, and swept by the next where that was killed."""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final, TextIO

_PREFIX: Final = "chasqui-spark-"
_OWNER: Final = "owner"
# A lock is held as long as its file is open.
_held: list[TextIO] = []


def scratch_folder() -> Path:
    """A folder of this process alone; those of dead processes are gone afterwards."""
    sweep()
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    _claim(folder)
    return folder


def sweep() -> None:
    """Delete folders whose owners are dead; what has no owner's mark is not ours to judge."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        if not _is_ours(folder):
            continue
        # Its owner lives, or it is gone already.
        with suppress(OSError), (folder / _OWNER).open("r+") as mark:
            fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)


def _is_ours(folder: Path) -> bool:
    """The temporary directory is everybody's: a link or another user's folder is left alone."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


def _claim(folder: Path) -> None:
    """Mark a folder as that of this process; the mark is locked before anybody can see it."""
    draft = folder / f"{_OWNER}.draft"
    mark = draft.open("w")
    fcntl.flock(mark, fcntl.LOCK_EX)
    draft.rename(folder / _OWNER)
    _held.append(mark)
