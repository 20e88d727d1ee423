"""Programs written for the original print the same lines with ours, on every kind of server."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
FOLDER = Path(__file__).with_name("programs")
PROGRAMS = sorted(path.stem for path in FOLDER.glob("*.txt"))
PLAYS_MAX = 4
PLAY_S_MAX = 40


class Stage:
    """Plays all programs with one interpreter on one server; most of their time they wait."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._begun: dict[tuple[Path, str], dict[str, Future]] = {}

    def played(self, python: Path, program: str, url: str, **environ: str):
        if (python, url) not in self._begun:
            self._begun[python, url] = {
                name: self._pool.submit(play, python, name, url, environ) for name in PROGRAMS
            }
        return self._begun[python, url][program].result()


def play(python: Path, program: str, url: str, environ: dict[str, str]):
    """Run it to its end, which may be a crash of the original's: only the lines count."""
    return subprocess.run(
        [python, FOLDER / f"{program}.py", url, f"q-{uuid.uuid4().hex[:12]}"],
        env={"PATH": os.environ["PATH"], "PYTHONIOENCODING": "utf-8", **environ},
        capture_output=True,
        encoding="utf-8",
        timeout=PLAY_S_MAX,
        check=False,
    )


def lines_of(program: str) -> str:
    return (FOLDER / f"{program}.txt").read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def stage():
    with ThreadPoolExecutor(PLAYS_MAX) as pool:
        yield Stage(pool)


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_original_prints_what_is_written_down(program, stage, original_python, shared_url):
    played = stage.played(original_python, program, shared_url)

    assert played.stdout == lines_of(program), played.stderr


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.takes_turns
def test_ours_prints_the_same(program, stage, url):
    played = stage.played(Path(sys.executable), program, url, PYTHONPATH=str(SOURCE))

    assert played.stdout == lines_of(program), played.stderr


def test_every_program_has_its_lines_written_down():
    named = {path.stem for path in FOLDER.glob("*.py")} - {"refusal_cases", "stage"}

    assert named == set(PROGRAMS)
