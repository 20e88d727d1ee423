"""Importing the package is cheap and brings no client, no command line and no Spark."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"

HEAVY = ("redis", "hiredis", "rich", "click", "pyspark", "uvloop", "prometheus_client")


def run(code: str) -> str:
    answer = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, check=True, timeout=30,
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
    )  # fmt: skip
    return answer.stdout.strip()


def fastest_ms(code: str, tries: int = 7) -> float:
    taken = []
    for _ in range(tries):
        started_s = time.perf_counter()
        run(code)
        taken.append((time.perf_counter() - started_s) * 1000)
    return min(taken)


def test_importing_the_package_loads_nothing_heavy():
    loaded = run(f"import sys, chasquimq; print([m for m in {HEAVY!r} if m in sys.modules])")

    assert loaded == "[]"


def test_importing_the_package_costs_less_than_120_ms_beyond_bare_python():
    beyond_ms = fastest_ms("import chasquimq") - fastest_ms("pass")

    assert beyond_ms < 120, f"{beyond_ms:.0f} ms"


@pytest.mark.parametrize("name", ["pyspark", "rich", "click"])
def test_a_queue_and_a_worker_need_none_of_the_doors(name):
    loaded = run(f"import sys; from chasquimq import Queue, Worker; print({name!r} in sys.modules)")

    assert loaded == "False"
