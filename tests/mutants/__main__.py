"""Breaks a copy of the tree in one place at a time, and demands that the named test turns red.

python -m tests.mutants                 all of them
python -m tests.mutants heartbeat ack   those with one of these words in their names
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

_ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(_ROOT / "tests"))

from mutants.catalogue import MUTANTS, Mutant  # noqa: E402  the path is set above

_COPIED = ("src", "tests", "pyproject.toml")
_TEST_S_MAX = 180
_GREEN, _RED = 0, 1


def main() -> int:
    words = _parser().parse_args().words
    chosen = [one for one in MUTANTS if not words or any(word in one.name for word in words)]
    for one in chosen:
        broken(one, (_ROOT / one.path).read_text())
    with tempfile.TemporaryDirectory(prefix="chasqui-mutants-") as scratch:
        copy = Path(scratch) / "copy"
        _copy_tree(copy)
        if (code := _run(copy, sorted({one.test for one in chosen}))) != _GREEN:
            print(f"the tests must be green before anything is broken, pytest said {code}")
            return 1
        survivors = [one.name for one in chosen if not _is_killed(copy, one)]
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} mutants killed")
    return 1 if survivors else 0


def broken(mutant: Mutant, text: str) -> str:
    """The text with the break; refuses one that does not fit exactly one place."""
    found = text.count(mutant.before)
    if found != 1:
        raise SystemExit(f"{mutant.name}: its place must be once in {mutant.path}, found {found}")
    return text.replace(mutant.before, mutant.after)


def _copy_tree(copy: Path) -> None:
    copy.mkdir()
    for name in _COPIED:
        source = _ROOT / name
        if source.is_file():
            shutil.copy(source, copy / name)
        else:
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))


def _is_killed(copy: Path, mutant: Mutant) -> bool:
    path = copy / mutant.path
    whole = path.read_text()
    path.write_text(broken(mutant, whole))
    begun_s = time.monotonic()
    try:
        code = _run(copy, [mutant.test])
    finally:
        path.write_text(whole)
    is_killed = code == _RED
    said = "killed" if is_killed else f"SURVIVED (pytest said {code})"
    test = mutant.test.removeprefix("tests/")
    print(f"{said:9} {time.monotonic() - begun_s:5.1f} s  {mutant.name}: {test}", flush=True)
    return is_killed


def _run(copy: Path, tests: Sequence[str]) -> int:
    # Nothing of the copy's Python is cached, so that two writes in one second are two programs.
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "CHASQUI_TEST_SERVERS": ""}
    command = [sys.executable, "-m", "pytest", "-q", "-x", *tests]
    try:
        done = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, check=False, text=True,
            timeout=_TEST_S_MAX * len(tests),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return _RED
    if len(tests) > 1 and done.returncode != _GREEN:
        print(done.stdout[-3_000:])
    return done.returncode


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mutants", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("words", nargs="*", help="only those with one of these in their names")
    return parser


if __name__ == "__main__":
    sys.exit(main())
