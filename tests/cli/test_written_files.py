"""Files that commands write: whole or not there, private where they hold jobs, no link followed."""

from __future__ import annotations

import asyncio
import os
import shlex
import stat
import subprocess
from pathlib import Path

import pytest

from chasquimq.cli.files import whole_file
from support.command import PROGRAM

pytestmark = pytest.mark.takes_turns


@pytest.fixture
def open_umask():
    """What a machine does that gives everything to everybody."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def victim(tmp_path):
    path = tmp_path / "victim"
    path.write_text("mine")
    return path


def mode_of(path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("open_umask")
async def test_an_export_is_for_its_owner_alone(say, queue_name, grave, tmp_path):
    output = tmp_path / "dead.jsonl"
    await grave(("mail", "secret"))
    output.write_text("the one of yesterday")
    output.chmod(0o644)

    assert (await say("dlq", "export", queue_name, "--output", str(output))).code == 0

    assert mode_of(output) == 0o600
    assert "secret" in output.read_text()


@pytest.mark.parametrize("command", ["dlq export", "metrics"])
async def test_a_link_that_waits_for_a_draft_or_the_file_is_not_followed(
    say, queue_name, grave, tmp_path, victim, command
):
    output = tmp_path / "out"
    await grave(("mail", "secret"))
    for name in (f"out.part-{os.getpid()}", f".out.{os.getpid()}", "out"):
        (tmp_path / name).symlink_to(victim)

    said = await say(*command.split(), queue_name, "--output", str(output))

    assert said.code == 0
    assert victim.read_text() == "mine"
    assert not output.is_symlink()
    assert output.read_text()


@pytest.mark.parametrize("command", ["dlq export", "metrics"])
async def test_a_pipe_keeps_its_name(say, queue_name, grave, tmp_path, command):
    output = tmp_path / "pipe"
    os.mkfifo(output)
    await grave(("mail", "secret"))

    said = await say(*command.split(), queue_name, "--output", str(output))

    assert said.code == 1
    assert f"{output} must be a file that can be written: a device, a pipe or a stream" in said.err
    assert output.is_fifo()
    assert list(tmp_path.iterdir()) == [output]


def test_a_link_to_a_device_keeps_its_name(tmp_path):
    output = tmp_path / "null"
    output.symlink_to("/dev/null")

    with (
        pytest.raises(OSError, match="a device, a pipe or a stream"),
        whole_file(output, is_private=True),
    ):
        pass

    assert output.is_symlink()


async def test_a_link_to_our_own_output_keeps_its_name(environ, queue_name, grave, tmp_path):
    # As /dev/stdout, in a place where it may be lost.
    output, told = tmp_path / "stdout", tmp_path / "told"
    output.symlink_to("/proc/self/fd/1")
    await grave(("mail", "secret"))

    with told.open("wb") as file:
        ended = await asyncio.to_thread(
            subprocess.run,
            [*PROGRAM, "dlq", "export", queue_name, "--output", str(output)],
            env=environ, stdout=file, stderr=subprocess.PIPE, timeout=30, check=False,
        )  # fmt: skip

    assert ended.returncode == 1
    assert b"a device, a pipe or a stream" in ended.stderr
    assert output.is_symlink()


@pytest.mark.parametrize("args", [("--help",), ("completion", "bash")])
@pytest.mark.parametrize(
    ("redirection", "code", "said"),
    [
        (">/dev/full", 1, "error: the output must be written and was not: No space left on device"),
        (">&-", 0, ""),
    ],
)
async def test_output_that_cannot_be_written_is_no_traceback(
    bare_environ, args, redirection, code, said
):
    line = f"{shlex.join([*PROGRAM, *args])} {redirection}"
    ended = await asyncio.to_thread(
        subprocess.run,
        ["/bin/sh", "-c", line],
        env=bare_environ, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip

    assert ended.stderr.strip() == said
    assert ended.returncode == code


def test_nobody_sees_a_file_before_it_is_whole(tmp_path):
    path = tmp_path / "out"
    with whole_file(path, is_private=True) as file:
        file.write("secret")
        file.flush()
        (draft,) = tmp_path.iterdir()
        assert draft != path
        assert mode_of(draft) == 0o600

    assert path.read_text() == "secret"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_a_file_for_others_has_the_mode_that_the_user_chose(tmp_path, umask):
    before = os.umask(umask)
    try:
        with whole_file(tmp_path / "page", is_private=False) as file:
            file.write("up 1\n")
    finally:
        os.umask(before)

    assert mode_of(tmp_path / "page") == 0o666 & ~umask


@pytest.mark.parametrize("error", [OSError("full"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_what_was_there(tmp_path, error):
    path = tmp_path / "out"
    path.write_text("the one of yesterday")

    def fail() -> None:
        with whole_file(path, is_private=True) as file:
            file.write("half")
            raise error

    with pytest.raises(type(error)):
        fail()
    assert path.read_text() == "the one of yesterday"
    assert list(tmp_path.iterdir()) == [path]


def test_bytes_and_name_are_on_disk_when_it_is_done(tmp_path, monkeypatch):
    synced = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    with whole_file(tmp_path / "out", is_private=True) as file:
        file.write("x")

    assert len(synced) == 2
    assert synced[0].startswith(f"{tmp_path}/.chasqui-")
    assert synced[1] == str(tmp_path)
