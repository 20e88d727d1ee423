"""A short, private place for a project's unix socket."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from chasquimq.errors import SettingsError

# The smallest limit among the systems we run on is 104 bytes with the closing zero.
SOCKET_PATH_BYTES_MAX = 103
PRIVATE_MODE = 0o700
RUNTIME_VARIABLE = "XDG_RUNTIME_DIR"
HASH_BYTES = 8


def project_socket_path(project: Path, environ: Mapping[str, str]) -> Path:
    """The socket of the project's server, in a directory that only this user can enter."""
    digest = hashlib.blake2b(os.fsencode(project.resolve()), digest_size=HASH_BYTES).hexdigest()
    path = _from_runtime_dir(digest, environ) or _shared_root() / f"{digest}.sock"
    ensure_private(path.parent)
    return path


def fits_a_socket(path: Path) -> bool:
    return len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX


def ensure_private(directory: Path) -> None:
    """Create the directory, or refuse one that somebody else may enter or own."""
    with suppress(FileExistsError):
        directory.mkdir(mode=PRIVATE_MODE)
    found = directory.lstat()
    mode = stat.S_IMODE(found.st_mode) & 0o777
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    if not is_ours or mode != PRIVATE_MODE:
        raise _not_private(directory, found, mode)


def _from_runtime_dir(digest: str, environ: Mapping[str, str]) -> Path | None:
    runtime_dir = Path(environ.get(RUNTIME_VARIABLE, ""))
    path = runtime_dir / "chasqui" / f"{digest}.sock"
    is_usable = runtime_dir.is_absolute() and os.access(runtime_dir, os.W_OK | os.X_OK)
    return path if is_usable and _is_kept(runtime_dir) and fits_a_socket(path) else None


def _is_kept(directory: Path) -> bool:
    """Whether nobody else can put another directory into the place of ours."""
    found = directory.stat()
    is_shared = found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX
    return found.st_uid in (os.getuid(), 0) and not is_shared


def _shared_root() -> Path:
    # Not the system's temporary directory: on some systems its path alone is half of the limit.
    return Path(f"/tmp/chasqui-{os.getuid()}")


def _not_private(directory: Path, found: os.stat_result, mode: int) -> SettingsError:
    kind = "directory" if stat.S_ISDIR(found.st_mode) else "file or link"
    return SettingsError(
        f"the socket directory {directory}",
        f"{kind} of user {found.st_uid} with mode {mode:04o}",
        f"a directory of user {os.getuid()} with mode {PRIVATE_MODE:04o}",
        hint=f"remove it, or set {RUNTIME_VARIABLE} to a directory of your own",
    )
