"""Opens, locks and checks the files of a server: of this user only, and never through a link.

A project directory may be shared, and the names inside `.chasqui` are the same everywhere.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from chasquimq.errors import PreconditionFailed, SettingsError

_FILE_MODE = 0o600
_DIRECTORY_MODE = 0o700
_OTHERS_MAY_WRITE = 0o002
# What server programs write into their directory; a lake beside it may well be a link.
_SERVER_FOLDER = "appendonlydir"
_SERVER_SUFFIXES = (".aof", ".conf", ".manifest", ".rdb")
_HINT = "find out which program or user made it, then remove it or use another directory"


# ── files of this user ────────────────────────────────────────────────────────────────────────────


def own_directory(path: Path) -> None:
    """Make a directory of this user, kept out of every repository; one that is there is checked."""
    with suppress(FileExistsError):
        path.mkdir(mode=_DIRECTORY_MODE)
    check_directory(path)
    create_own(path / ".gitignore", "*\n")


def check_directory(path: Path) -> None:
    """Refuse a directory that is a link, is another user's, or that others may write to.

    Raises:
        OSError: there is none, or a plain file is in its place.
        SettingsError: it is not ours alone; the message says why.
    """
    found = path.lstat()
    if stat.S_ISREG(found.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    if not is_ours or found.st_mode & _OTHERS_MAY_WRITE:
        rule = f"a directory of user {os.getuid()} that other users cannot write to"
        raise SettingsError(f"the directory {path}", _shown(found), rule, hint=_HINT)


def check_contents(directory: Path) -> None:
    """Refuse links and what belongs to others among the files that a server program uses."""
    for path in _server_files(directory):
        found = path.lstat()
        if stat.S_ISLNK(found.st_mode) or found.st_uid != os.getuid():
            raise _refusal(path, found)


def open_own(path: Path, flags: int) -> int:
    """A descriptor of a plain file of ours, created if `flags` say so.

    Raises:
        SettingsError: it is a link, has a second name, or is another user's.
    """
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, _FILE_MODE)
    except OSError as error:
        # A link is ELOOP here, and EMLINK or EFTYPE on other systems. Pipes and directories may
        # refuse to be written, too.
        with suppress(OSError):
            found = path.lstat()
            if error.errno != errno.EEXIST and not stat.S_ISREG(found.st_mode):
                raise _refusal(path, found) from None
        raise
    found = os.fstat(descriptor)
    is_plain = stat.S_ISREG(found.st_mode) and found.st_nlink == 1
    if not is_plain or found.st_uid != os.getuid():
        os.close(descriptor)
        raise _refusal(path, found)
    return descriptor


def read_own(path: Path) -> str:
    """The text of a file of ours."""
    with os.fdopen(open_own(path, os.O_RDONLY), encoding="utf-8", errors="replace") as file:
        return file.read()


def write_own(path: Path, text: str) -> None:
    """Replace the text of a file of ours; it is emptied only after it was looked at."""
    with os.fdopen(open_own(path, os.O_WRONLY | os.O_CREAT), "w", encoding="utf-8") as file:
        file.truncate(0)
        file.write(text)


def create_own(path: Path, text: str) -> None:
    """Write a file that is not there yet; one that is must be ours, and stays as it is."""
    try:
        descriptor = open_own(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        os.close(open_own(path, os.O_RDONLY))
        return
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)


def _server_files(directory: Path) -> Iterator[Path]:
    for path in sorted(directory.iterdir()):
        if path.name == _SERVER_FOLDER or path.name.endswith(_SERVER_SUFFIXES):
            yield path
        if path.name == _SERVER_FOLDER and path.is_dir():
            yield from sorted(path.iterdir())


def _refusal(path: Path, found: os.stat_result) -> SettingsError:
    rule = f"a plain file of user {os.getuid()} without a second name"
    return SettingsError(f"the file {path}", _shown(found), rule, hint=_HINT)


def _shown(found: os.stat_result) -> str:
    kinds = {stat.S_IFDIR: "a directory", stat.S_IFLNK: "a link", stat.S_IFREG: "a file"}
    kind = kinds.get(stat.S_IFMT(found.st_mode), "something else")
    names = f" with {found.st_nlink} names" if kind == "a file" and found.st_nlink > 1 else ""
    mode = stat.S_IMODE(found.st_mode) & 0o777
    return f"{kind}{names} of user {found.st_uid} with mode {mode:04o}"


# ── locks ─────────────────────────────────────────────────────────────────────────────────────────

POLL_S = 0.005


@contextmanager
def locked(path: Path, wait_s: float) -> Generator[int]:
    """Hold the lock and yield its descriptor.

    A process that inherits the descriptor goes on holding the lock after this block:
    closing our copy releases nothing while another copy is open.

    Raises:
        TimeoutError: another process held it for all of `wait_s`.
        SettingsError: the file is a link, or another user's.
    """
    descriptor = open_own(path, os.O_RDWR | os.O_CREAT)
    try:
        _wait_for(descriptor, path, time.monotonic() + wait_s)
        yield descriptor
    finally:
        os.close(descriptor)


def becomes_free(path: Path, wait_s: float = 0) -> bool:
    """Return whether the lock is free now, or becomes free within `wait_s`."""
    try:
        with locked(path, wait_s):
            return True
    except TimeoutError:
        return False


def _wait_for(descriptor: int, path: Path, deadline: float) -> None:
    while not _try_lock(descriptor):
        if time.monotonic() >= deadline:
            raise TimeoutError(f"{path} is locked by another process")
        time.sleep(POLL_S)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


# ── the path of a socket ──────────────────────────────────────────────────────────────────────────

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
    """Create the directory, or refuse one that another user owns or may enter."""
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
    """Whether no other user can replace our directory by another one."""
    found = directory.stat()
    is_shared = found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX
    return found.st_uid in (os.getuid(), 0) and not is_shared


def _shared_root() -> Path:
    # Not the system's temporary directory: on some systems its path alone is half of the limit.
    return Path(f"/tmp/chasqui-{os.getuid()}")


def _not_private(directory: Path, found: os.stat_result, mode: int) -> SettingsError:
    kind = "directory" if stat.S_ISDIR(found.st_mode) else "file or link"
    return PreconditionFailed(
        f"the socket directory {directory}",
        f"{kind} of user {found.st_uid} with mode {mode:04o}",
        f"a directory of user {os.getuid()} with mode {PRIVATE_MODE:04o}",
        hint=f"remove it, or set {RUNTIME_VARIABLE} to a directory of your own",
    )
