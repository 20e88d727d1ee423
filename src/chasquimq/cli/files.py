"""Writes the files that commands are asked for: whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

_PREFIX = ".chasqui-"


@contextmanager
def whole_file(path: Path, *, is_private: bool) -> Generator[TextIO]:
    """A file to write that gets its name when all of it is on disk.

    The draft has a name that cannot be guessed, and the owner alone may read it. A link at `path`
    is replaced, not followed. What is private stays for its owner, whatever the umask says.

    Raises:
        OSError: it cannot be written; or what is there is no file, and taking its name would
            take a device or a pipe from all who use it.
    """
    _refuse_streams(path)
    descriptor, draft = tempfile.mkstemp(prefix=_PREFIX, dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            yield file
            file.flush()
            if not is_private:
                os.fchmod(descriptor, 0o666 & ~_umask())
            os.fsync(descriptor)
        Path(draft).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(draft).unlink()
        raise
    _sync_folder(path.parent)


def _refuse_streams(path: Path) -> None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return
    if not stat.S_ISREG(found.st_mode) or (path.is_symlink() and _is_ours(found)):
        why = "a device, a pipe or a stream is there; without the option the output goes to stdout"
        raise OSError(errno.EINVAL, why)


def _is_ours(found: os.stat_result) -> bool:
    """Whether this is one of our own streams, as behind /dev/stdout when it goes to a file."""
    for descriptor in (0, 1, 2):
        with suppress(OSError):
            if os.path.samestat(found, os.fstat(descriptor)):
                return True
    return False


def _umask() -> int:
    # There is no way to ask but to set it.
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _sync_folder(folder: Path) -> None:
    # Not every file system takes it for a folder, and the file itself is there.
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
