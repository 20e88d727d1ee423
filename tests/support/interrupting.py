"""Sends Ctrl+C to a real command at a moment of the caller's, and looks at what is left."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import random
import re
import signal
import struct
import subprocess
import termios
import threading
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.waiting import patience

MARK = "CHASQUI_TEST_MARK"
END_S_MAX = 60.0
GONE_S_MAX = 20.0
# So many interrupts of each command; fifty where there is time.
MOMENTS = 50 if os.environ.get("CHASQUI_TEST_BIG") == "1" else 4
SEED = 14
TRIES_MAX = 6
# What a command tells of its work, and may tell until it hears of the interrupt.
PROGRESS = re.compile(
    r"^(starting Spark …|\S+ batch \d+: .*|exported .*|kept: .*|waiting .*|serving .*"
    r"|.* on a quiet machine.*|no queue named .* yet; .*|)$"
)


@dataclass(frozen=True)
class Ended:
    """How a command ended: `said` is all that came on stderr after the signal."""

    code: int
    said: str
    before: str
    shown: str
    lasted_s: float = 0.0

    @property
    def lines(self) -> list[str]:
        """What it said of the interrupt, without progress that was on its way."""
        lines = self.said.replace("\r", "\n").split("\n")
        return [one for one in lines if not PROGRESS.match(one.strip())]

    @property
    def is_by_itself(self) -> bool:
        """Whether it was done before it could hear of the interrupt."""
        return self.code == 0 and "interrupted" not in self.said


def interrupt(
    command: Sequence[str],
    after_s: float,
    environ: dict[str, str],
    folder: Path,
    *,
    until: str = "",
    stdin: int = subprocess.DEVNULL,
) -> Ended:
    """Start it in a group of its own, wait, and send the group SIGINT.

    `until` is what it must say first. As the launcher does, SIGINT is blocked until it is answered.
    """
    mark = uuid.uuid4().hex
    err, out = folder / "err", folder / "out"
    with err.open("wb") as err_file, out.open("wb") as out_file:
        process = _started(
            command, env=environ | {MARK: mark}, cwd=folder, stdin=stdin, stdout=out_file,
            stderr=err_file, start_new_session=True,
        )  # fmt: skip
    began_s = time.monotonic()
    while until and until not in err.read_text(errors="replace"):
        assert process.poll() is None, err.read_text(errors="replace")
        assert time.monotonic() < began_s + END_S_MAX * patience(), "it must say it in time"
        time.sleep(0.005)
    with suppress(subprocess.TimeoutExpired):
        process.wait(after_s)
    lasted_s = time.monotonic() - began_s
    before = err.read_bytes()
    _signal_group(process)
    code = _end(process)
    _assert_nobody_left(mark)
    said = err.read_bytes()[len(before) :].decode(errors="replace")
    shown = out.read_text(errors="replace")
    return Ended(code, said, before.decode(errors="replace"), shown, lasted_s)


def interrupt_on_a_terminal(
    command: Sequence[str], until: str, after_s: float, environ: dict[str, str], folder: Path
) -> Ended:
    """The same on a pty, where Ctrl+C is typed once that is shown: prompts wait for a person."""
    mark = uuid.uuid4().hex
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 100, 0, 0))
    process = _started(
        ["setsid", "--ctty", "--wait", *command], env=environ | {MARK: mark, "TERM": "xterm"}, cwd=folder,
        stdin=theirs, stdout=theirs, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    seen = bytearray()
    reading = threading.Thread(target=_read_all, args=(ours, seen))
    reading.start()
    began_s = time.monotonic()
    while until not in seen.decode(errors="replace"):
        assert time.monotonic() < began_s + END_S_MAX * patience(), seen.decode(errors="replace")
        time.sleep(0.005)
    time.sleep(after_s)
    before = len(seen)
    os.write(ours, b"\x03")
    code = _end(process)
    reading.join()
    os.close(ours)
    _assert_nobody_left(mark)
    said = seen[before:].decode(errors="replace").replace("\r\n", "\n").removeprefix("^C")
    return Ended(code, said, seen[:before].decode(errors="replace"), "")


def _started(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return subprocess.Popen(command, **options)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _signal_group(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGINT)


def _end(process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait(END_S_MAX * patience())
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise AssertionError("an interrupt must end it, and it goes on") from None


def _read_all(descriptor: int, seen: bytearray) -> None:
    while True:
        try:
            chunk = os.read(descriptor, 65_536)
        except OSError:
            return
        if not chunk:
            return
        seen += chunk


def _assert_nobody_left(mark: str) -> None:
    until_s = time.monotonic() + GONE_S_MAX * patience()
    while left := _marked(mark):
        assert time.monotonic() < until_s, f"left behind: {left}"
        time.sleep(0.02)


def _marked(mark: str) -> list[str]:
    """The command lines of all processes that have it in their environment."""
    found: list[str] = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (path / "environ").read_bytes():
                found.append((path / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


async def assert_ends_well(
    command: list[str], span_s: float, environ: dict[str, str], folder: Path, least_s: float = 0.0
) -> None:
    """So many interrupts are heard, and each ends in one line."""
    heard = 0
    for share in moments(1.0, MOMENTS * TRIES_MAX):
        after_s = max(share * span_s, least_s)
        ended = await asyncio.to_thread(
            interrupt, command, after_s, environ, folder, stdin=_endless_stdin()
        )
        is_heard = assert_one_line(ended, after_s)
        heard += is_heard
        if not is_heard:
            # It takes less time than it did when it was measured.
            span_s = min(span_s, ended.lasted_s)
        assert_no_drafts(folder)
        if heard == MOMENTS:
            return
    pytest.fail(f"only {heard} of {MOMENTS} interrupts came before the end")


def assert_one_line(ended: Ended, after_s: float) -> bool:
    """Whether the command was interrupted; one that was done before says nothing of it."""
    if ended.is_by_itself or (ended.code == 1 and "interrupted" not in ended.said):
        return False
    told = f"after {after_s:.3f} s: {ended}"
    assert ended.code == 130, told
    assert len(ended.lines) == 1, told
    assert ended.lines[0].startswith("interrupted"), told
    return True


def assert_no_drafts(folder: Path) -> None:
    assert list(folder.glob(".chasqui-*")) == []
    assert [one.name for one in (folder / "tmp").iterdir() if one.name != "chasqui"] == []


def moments(span_s: float, count: int = MOMENTS) -> list[float]:
    drawn = random.Random(SEED)
    return [drawn.uniform(0.0, span_s * 0.95) for _ in range(count)]


def duration_s(command: list[str], environ: dict[str, str], folder: Path) -> float:
    """How long it takes when nobody interrupts it; `assert_ends_well` corrects what is too long."""
    began_s = time.monotonic()
    subprocess.run(
        command, env=environ, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True,
        check=False,
    )  # fmt: skip
    return time.monotonic() - began_s


_PIPE: list[int] = []


def _endless_stdin() -> int:
    """A pipe that nobody writes to and nobody closes."""
    if not _PIPE:
        _PIPE.extend(os.pipe())
    return _PIPE[0]
