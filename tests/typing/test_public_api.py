"""The public API means the same to a type checker as to a reader."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SNIPPETS = Path(__file__).with_name("snippets.py")


def test_the_type_checker_agrees_with_every_snippet():
    answer = subprocess.run(
        [sys.executable, "-m", "basedpyright", "--outputjson", str(SNIPPETS)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )

    found = json.loads(answer.stdout)
    assert found["summary"]["filesAnalyzed"] == 1
    assert [
        f"line {one['range']['start']['line'] + 1}: {one['message']}"
        for one in found["generalDiagnostics"]
    ] == []


def test_the_package_tells_type_checkers_that_it_is_typed():
    assert (ROOT / "src" / "chasquimq" / "py.typed").exists()
