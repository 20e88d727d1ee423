"""The measure of what watching costs runs, and every side does all of its work."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_side_is_compared_with_the_bare_one(tmp_path):
    document = tmp_path / "cost.json"

    said = subprocess.run(
        [
            sys.executable, "-m", "benchmarks.observability_cost", "--jobs", "300",
            "--rounds", "2", "--json", document,
        ],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")}, cwd=ROOT, capture_output=True, text=True,
        timeout=50, check=True,
    )  # fmt: skip

    sides = json.loads(document.read_text())["sides"]
    assert sides["bare"]["to_bare"] == {"median": 1, "min": 1, "max": 1}
    assert {len(side["rounds"]) for side in sides.values()} == {2}
    assert [name for name in sides if name not in said.stdout] == []
