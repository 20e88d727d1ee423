"""Makes .venv and fills it with the pinned wheels; safe to interrupt, safe to race."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress

from stamps import (
    PINS,
    RELEASE,
    is_ready,
    pins_of,
    stamp_path,
    venv_path,
    wanted_stamp,
)

ASK_VERSION = "import sys; print('{}.{}'.format(*sys.version_info))"
ASK_SITE = "import sysconfig; print(sysconfig.get_path('purelib'))"
# Nothing is installed that is not one of the pinned wheels; pyspark, which exists only as source, is
# built by the pinned setuptools and not by what pip would fetch for a build environment of its own.
INSTALL = (
    "install", "--no-input", "--disable-pip-version-check", "--require-hashes",
    "--only-binary", ":all:", "--no-build-isolation",
)  # fmt: skip
BUILDERS = ("spark-build.txt", "build.txt")
EXTENTS = {
    "sql": ", with DuckDB and Arrow: 150 megabytes",
    "spark": ", with Spark: half a gigabyte, minutes",
    "test": ", with Spark: half a gigabyte, minutes",
}
MISMATCH = re.compile(
    r"DO NOT MATCH THE HASHES.*?^ {4}(\S+)(?: from (\S+))?", re.DOTALL | re.MULTILINE
)
UNHASHED = re.compile(
    r"(?:Hashes are required|must have their versions pinned).*?^ {4}(\S+)",
    re.DOTALL | re.MULTILINE,
)
NO_WHEEL = re.compile(r"No matching distribution found for (\S+)")
SOURCE_PATH_FILE = "chasqui-src.pth"
# Relative, so that a tree that is moved calls its own command.
LAUNCHER = """#!/bin/sh
# The same as ./chasqui in the checkout, for who has .venv/bin on PATH.
self=$0
[ -L "$self" ] && self=$(readlink -f -- "$self")
case $self in */*) here=${self%/*} ;; *) here=. ;; esac
exec "$here/../../chasqui" "$@"
"""


class SetUpFailed(Exception):
    """One sentence with a remedy."""


def prepare(root: str, level: str) -> None:
    """Bring .venv to the level; whoever comes second waits and finds it done."""
    try:
        with _alone(root):
            _fill_if_needed(root, level)
    except OSError as refused:
        raise SetUpFailed(
            f"{refused.filename or root} cannot be used ({refused.strerror}); "
            "make the directory writable, or copy it to where it is, then run it again"
        ) from refused


def _fill_if_needed(root: str, level: str) -> None:
    version = _venv_version(venv_path(root, level))
    if not version or not is_ready(root, level, version):
        _fill(root, level)


def _fill(root: str, level: str) -> None:
    started = time.monotonic()
    venv = venv_path(root, level)
    if _was_interrupted(venv) or not _venv_version(venv):
        _make_venv(venv)
    _drop_stamps(root, level)
    with _marked_unfinished(venv):
        pip = _find_pip(venv)
        _install(root, level, pip)
        if level != RELEASE:
            _make_source_importable(root, venv)
            write_launcher(root)
        _write_stamps(root, level)
    _say(f"ready after {time.monotonic() - started:.0f} s")


def _make_venv(venv: str) -> None:
    _say(f"setting up {os.path.basename(venv)} (once) …")
    # Without pip: the one of this Python can fill it, and copying pip takes longer than that.
    made = _run([base_python(), "-m", "venv", "--clear", "--without-pip", venv])
    if made.returncode:
        raise SetUpFailed(
            f"{base_python()} cannot make a virtual environment ({_last_line(made.stdout)}); "
            f"{_apt_remedy()}"
        )


def _find_pip(venv: str) -> list[str]:
    """A command that installs into the environment: its own pip, this Python's, or a fresh one."""
    python = _python(venv)
    own = [python, "-P", "-m", "pip"]
    host = [base_python(), "-P", "-m", "pip", "--python", python]
    for pip in (own, host):
        if not _run([*pip, "--version"]).returncode:
            return pip
    if _run([python, "-m", "ensurepip"]).returncode:
        raise SetUpFailed(f"pip is needed to fill .venv and this Python has none; {_apt_remedy()}")
    return own


def _install(root: str, level: str, pip: list[str]) -> None:
    _say(f"installing the pinned packages (once{EXTENTS.get(level, '')}) …")
    names = pins_of(level)
    # The last file extends the others, but for those that must be there before it.
    for name in (*(name for name in names if name in BUILDERS), names[-1]):
        _install_pins(root, level, pip, name)


def _install_pins(root: str, level: str, pip: list[str], name: str) -> None:
    pins = os.path.join(root, "requirements", name)
    done = _watched([*pip, *INSTALL, "-r", pins])
    if done.returncode:
        log_path = os.path.join(venv_path(root, level), "chasqui-setup.log")
        with open(log_path, "w", encoding="utf-8") as log:
            log.write(done.stdout)
        raise SetUpFailed(f"{explain_pip(done.stdout)}; all that pip said is in {log_path}")


def explain_pip(output: str) -> str:
    """One sentence about why pip refused, and what to try."""
    if found := MISMATCH.search(output):
        package, source = found[1], (found[2] or "the index").split("#")[0].rstrip(":")
        return (
            f"{package} was refused: what came from {source} is not one of the files whose hashes "
            "requirements/ lists, so it was changed on its way or the index serves builds of its "
            "own; try the index that the pins were made from, and `pip cache purge`"
        )
    if found := UNHASHED.search(output):
        return (
            f"{found[1]} was refused: every package needs a pinned version and its hashes in "
            "requirements/, and it has none there; run `make lock`"
        )
    if found := NO_WHEEL.search(output):
        python = "{}.{}".format(*sys.version_info)
        return (
            f"the packages could not be installed: no wheel of {found[1].rstrip(';')} for Python "
            f"{python} on this system was found; check the network and pip's index settings, or "
            "try another Python (3.11 to 3.13 have all wheels, Alpine and other systems with musl "
            "have none of the server), then run the same command again"
        )
    return (
        f"the packages could not be installed ({_last_line(output)}); check the network and pip's "
        "index, proxy and certificate settings, then run the same command again"
    )


def _make_source_importable(root: str, venv: str) -> None:
    site = _ask(_python(venv), ASK_SITE)
    with open(os.path.join(site, SOURCE_PATH_FILE), "w", encoding="utf-8") as path_file:
        # Relative, so that a tree that is moved finds its own source.
        path_file.write(os.path.relpath(os.path.join(root, "src"), site) + "\n")


def write_launcher(root: str) -> None:
    """Put the command where an activated .venv looks for commands."""
    path = os.path.join(venv_path(root), "bin", "chasqui")
    with open(path, "w", encoding="utf-8") as launcher:
        launcher.write(LAUNCHER)
    os.chmod(path, 0o755)  # noqa: S103  a command is for all who may read it


def _write_stamps(root: str, level: str) -> None:
    version = _venv_version(venv_path(root, level))
    for name in _levels_within(level):
        with open(stamp_path(root, name), "w", encoding="utf-8") as stamp:
            stamp.write(wanted_stamp(root, name, version))


def _drop_stamps(root: str, level: str) -> None:
    for name in [RELEASE] if level == RELEASE else PINS:
        with suppress(FileNotFoundError):
            os.unlink(stamp_path(root, name))


def _levels_within(level: str) -> list[str]:
    """The levels that are there once this one is."""
    levels = list(PINS)
    return [RELEASE] if level == RELEASE else levels[: levels.index(level) + 1]


@contextmanager
def _alone(root: str) -> Generator[None]:
    with open(os.path.join(root, ".venv.lock"), "w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("waiting for another ./chasqui that sets up .venv …")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _marked_unfinished(venv: str) -> Generator[None]:
    """Leave a mark while packages are half there; only an interruption leaves it behind."""
    mark = _mark_path(venv)
    with open(mark, "w", encoding="utf-8"):
        pass
    try:
        yield
    except SetUpFailed:
        os.unlink(mark)
        raise
    os.unlink(mark)


def _was_interrupted(venv: str) -> bool:
    return os.path.exists(_mark_path(venv))


def _mark_path(venv: str) -> str:
    return os.path.join(venv, "chasqui-unfinished")


def _python(venv: str) -> str:
    return os.path.join(venv, "bin", "python")


def _venv_version(venv: str) -> str:
    """The Python version of an environment; empty: there is none that runs."""
    return _ask(_python(venv), ASK_VERSION)


def base_python() -> str:
    # Inside .venv this is the Python it was made from; .venv cannot remake itself.
    return getattr(sys, "_base_executable", "") or sys.executable


def _ask(python: str, question: str) -> str:
    try:
        answer = _run([python, "-c", question])
    except OSError:
        return ""
    return "" if answer.returncode else answer.stdout.strip()


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env=_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )


def _watched(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run it; a terminal sees how long it takes so far."""
    started = time.monotonic()
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said:
        with subprocess.Popen(
            command, env=_environment(), stdin=subprocess.DEVNULL, stdout=said,
            stderr=subprocess.STDOUT,
        ) as process:  # fmt: skip
            while process.poll() is None:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(1)
                _tick(f"{time.monotonic() - started:.0f} s")
        _tick("")
        said.seek(0)
        return subprocess.CompletedProcess(command, process.returncode, said.read())


def _tick(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def _environment() -> dict[str, str]:
    """The caller's, with pip's own settings, but without what would lead it out of .venv."""
    astray = ("PYTHONHOME", "PYTHONPATH", "PIP_TARGET", "PIP_PREFIX")
    kept = {name: value for name, value in os.environ.items() if name not in astray}
    return kept | {"PIP_USER": "0"}


def _last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error")]
    return (errors or lines or ["no output"])[-1].rstrip(".")


def _apt_remedy() -> str:
    package = "python{}.{}-venv".format(*sys.version_info)
    return f"install what is missing (Debian, Ubuntu: apt install {package}), then run it again"


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)
