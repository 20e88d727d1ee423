"""Folders of sessions: whoever lives keeps his, and what the dead left is swept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[2] / "src"
KILLED = -9
MAKE = "from chasquimq.spark.session import scratch_folder; print(scratch_folder(), flush=True); "
DIE = "import os; os.kill(os.getpid(), 9)"
WAIT = "import sys; sys.stdin.read()"


@pytest.fixture
def program(tmp_path):
    """Starts a program that makes a folder for itself in the folder of the test."""
    started = []

    def start(then: str) -> tuple[subprocess.Popen, Path]:
        process = subprocess.Popen(
            [sys.executable, "-c", MAKE + then],
            env={"TMPDIR": str(tmp_path), "PYTHONPATH": str(SOURCES)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(process)
        return process, Path(process.stdout.readline().strip())

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_folder_goes_with_its_process(program):
    process, folder = program("pass")

    assert process.wait(30) == 0
    assert folder.name.startswith("chasqui-spark-")
    assert not folder.exists()


def test_the_folder_of_a_process_that_was_killed_is_swept_by_the_next(program):
    killed, left = program(DIE)
    assert killed.wait(30) == KILLED
    was_left = left.exists()

    program("pass")[0].wait(30)

    assert was_left
    assert not left.exists()


def test_the_folder_of_a_process_that_lives_stays(program):
    living, kept = program(WAIT)

    program("pass")[0].wait(30)

    assert living.poll() is None
    assert kept.is_dir()


def test_a_folder_without_the_mark_of_an_owner_stays(program, tmp_path):
    (tmp_path / "chasqui-spark-unknown").mkdir()

    program("pass")[0].wait(30)

    assert (tmp_path / "chasqui-spark-unknown").is_dir()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("kind", ["another user's", "a link"])
def test_a_folder_of_somebody_else_is_left_alone(program, tmp_path, kind):
    theirs = tmp_path / "chasqui-spark-theirs"
    if kind == "a link":
        (tmp_path / "elsewhere").mkdir()
        theirs.symlink_to(tmp_path / "elsewhere")
    else:
        theirs.mkdir()
        os.chown(theirs, 12_345, 12_345)
    (theirs / "owner").touch()

    process, _ = program("pass")

    assert process.wait(30) == 0
    assert (theirs / "owner").exists()
