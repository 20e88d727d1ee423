"""Makes .venv and fills it with the pinned packages; safe to interrupt, safe to race."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress

from stamps import PINS, is_ready, stamp_path, venv_python, wanted_stamp

ASK_VERSION = "import sys; print('{}.{}'.format(*sys.version_info))"
ASK_SITE = "import sysconfig; print(sysconfig.get_path('purelib'))"
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
    version = _venv_version(root)
    if not version or not is_ready(root, level, version):
        _fill(root, level)


def _fill(root: str, level: str) -> None:
    started = time.monotonic()
    if _was_interrupted(root) or not _venv_version(root):
        _make_venv(root)
    _drop_stamps(root)
    with _marked_unfinished(root):
        pip = _find_pip(root)
        _install(root, level, pip)
        _make_source_importable(root)
        write_launcher(root)
        _write_stamps(root, level)
    _say(f"ready after {time.monotonic() - started:.0f} s")


def _make_venv(root: str) -> None:
    _say("setting up .venv (once) …")
    # Without pip: the one of this Python can fill it, and copying pip takes longer than that.
    made = _run([base_python(), "-m", "venv", "--clear", "--without-pip", _in_venv(root)])
    if made.returncode:
        raise SetUpFailed(
            f"{base_python()} cannot make a virtual environment ({_last_line(made.stdout)}); "
            f"{_apt_remedy()}"
        )


def _find_pip(root: str) -> list[str]:
    """A command that installs into .venv: its own pip, this Python's, or a fresh one."""
    python = venv_python(root)
    own = [python, "-P", "-m", "pip"]
    host = [base_python(), "-P", "-m", "pip", "--python", python]
    for pip in (own, host):
        if not _run([*pip, "--version"]).returncode:
            return pip
    if _run([python, "-m", "ensurepip"]).returncode:
        raise SetUpFailed(f"pip is needed to fill .venv and this Python has none; {_apt_remedy()}")
    return own


def _install(root: str, level: str, pip: list[str]) -> None:
    extent = "" if level == "run" else ", with Spark: half a gigabyte, minutes"
    _say(f"installing the pinned packages (once{extent}) …")
    pins = os.path.join(root, "requirements", PINS[level][-1])
    done = _watched([*pip, "install", "--no-input", "--disable-pip-version-check", "-r", pins])
    if done.returncode:
        log_path = _in_venv(root, "chasqui-setup.log")
        with open(log_path, "w", encoding="utf-8") as log:
            log.write(done.stdout)
        raise SetUpFailed(
            f"the packages could not be installed ({_last_line(done.stdout)}); check the network "
            f"and pip's index, proxy and certificate settings, then run the same command again; "
            f"all that pip said is in {log_path}"
        )


def _make_source_importable(root: str) -> None:
    site = _ask(venv_python(root), ASK_SITE)
    with open(os.path.join(site, SOURCE_PATH_FILE), "w", encoding="utf-8") as path_file:
        # Relative, so that a tree that is moved finds its own source.
        path_file.write(os.path.relpath(os.path.join(root, "src"), site) + "\n")


def write_launcher(root: str) -> None:
    """Put the command where an activated .venv looks for commands."""
    path = _in_venv(root, "bin", "chasqui")
    with open(path, "w", encoding="utf-8") as launcher:
        launcher.write(LAUNCHER)
    os.chmod(path, 0o755)  # noqa: S103  a command is for all who may read it


def _write_stamps(root: str, level: str) -> None:
    version = _venv_version(root)
    levels = list(PINS)
    for name in levels[: levels.index(level) + 1]:
        with open(stamp_path(root, name), "w", encoding="utf-8") as stamp:
            stamp.write(wanted_stamp(root, name, version))


def _drop_stamps(root: str) -> None:
    for level in PINS:
        with suppress(FileNotFoundError):
            os.unlink(stamp_path(root, level))


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
def _marked_unfinished(root: str) -> Generator[None]:
    """Leave a mark while packages are half there; only an interruption leaves it behind."""
    mark = _mark_path(root)
    with open(mark, "w", encoding="utf-8"):
        pass
    try:
        yield
    except SetUpFailed:
        os.unlink(mark)
        raise
    os.unlink(mark)


def _was_interrupted(root: str) -> bool:
    return os.path.exists(_mark_path(root))


def _mark_path(root: str) -> str:
    return _in_venv(root, "chasqui-unfinished")


def _in_venv(root: str, *names: str) -> str:
    return os.path.join(root, ".venv", *names)


def _venv_version(root: str) -> str:
    """The Python version of .venv; empty: there is none that runs."""
    return _ask(venv_python(root), ASK_VERSION)


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
