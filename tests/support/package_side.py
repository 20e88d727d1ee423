"""One of the two packages, in processes of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FLEET = ROOT / "tests" / "interop" / "fleet"
PROGRAM_S_MAX = 40


class PackageSide:
    """Acts on the queue of a test."""

    def __init__(self, python: Path | str, url: str, queue: str, **environ: str) -> None:
        self._python, self._where, self._environ = python, [url, queue], environ

    @classmethod
    def ours(cls, url: str, queue: str) -> PackageSide:
        return cls(sys.executable, url, queue, PYTHONPATH=str(ROOT / "src"))

    def __call__(self, act: str, *arguments: object) -> Any:
        return self.answer("act.py", act, json.dumps(arguments))

    def answer(self, program: str, *words: str) -> Any:
        """What a program of the fleet prints."""
        ended = subprocess.run(
            [self._python, FLEET / program, *self._where, *words],
            env=self._environ, capture_output=True, text=True, timeout=PROGRAM_S_MAX, check=False,
        )  # fmt: skip
        assert ended.stdout, ended.stderr
        return json.loads(ended.stdout)
