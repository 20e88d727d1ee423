"""`chasqui demo` carries what its workers did through Spark to a report that says the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from chasquimq.cli.demo.report import differences
from chasquimq.cli.demo.stages import DemoCounts
from chasquimq.spark.report.shape import Column, Grid, Report, Section

SOURCES = Path(__file__).parents[2] / "src"
RUN_S_MAX = 200


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def answer(folder) -> dict:
    """The whole demo, small, as a program sees it."""
    done = subprocess.run(
        [sys.executable, "-m", "chasquimq", "demo", "--jobs", "1000", "--json"],
        env=os.environ | {"PYTHONPATH": str(SOURCES)}, cwd=folder, capture_output=True, text=True,
        timeout=RUN_S_MAX, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


@pytest.mark.timeout(RUN_S_MAX + 20)
def test_the_report_says_what_the_workers_counted_and_nothing_is_missing(answer):
    attempts = 1_000 + 12 + 500 + 4 + 3 + 2 + 8

    assert answer["tables"]["attempts"] == attempts
    assert answer["tables"]["differences"] == []
    assert answer["tables"]["completeness"] == (
        f"100 %, all {attempts:,} attempts that the server counted"
    )


@pytest.mark.timeout(RUN_S_MAX + 20)
def test_three_questions_are_answered_from_the_tables(answer):
    errors, retries, times = (one["rows"] for one in answer["tables"]["answers"])

    assert errors == [
        {"name": "charge-card", "reason": "bank did not answer", "failed": 10, "dead": 0},
        {"name": "import-row", "reason": "no price given", "failed": 4, "dead": 4},
        {"name": "import-row", "reason": "warehouse closed", "failed": 4, "dead": 2},
    ]
    assert {row["name"]: row["saved"] for row in retries} == {
        "charge-card": 10, "render-video": 8, "import-row": 0,
    }  # fmt: skip
    assert {row["name"] for row in times} >= {"send-email", "resize-image", "remind"}


@pytest.mark.timeout(RUN_S_MAX + 20)
def test_lake_and_report_stay_where_the_demo_says(answer, folder):
    assert answer["tables"]["page"] == str(folder / ".chasqui/demo/report.html")
    assert (folder / ".chasqui/demo/report.html").read_text().startswith("<!doctype html>")
    assert (folder / ".chasqui/demo/lake/gold_minute").is_dir()
    assert (folder / ".chasqui/.gitignore").read_text() == "*\n"


def report_of(*rows: dict) -> Report:
    columns = [Column(name, name) for name in ("name", "completed", "retried", "dead")]
    return Report([], None, None, [], [Section("throughput", "", grids=[Grid(columns, rows)])])


def tally(**counts: int) -> DemoCounts:
    made = DemoCounts()
    for what, count in counts.items():
        setattr(made, what, Counter({"send": count}))
    return made


def test_tallies_of_all_workers_are_compared_together():
    row = {"name": "send", "completed": 5, "retried": 1, "dead": 0}

    assert differences([tally(completed=3, retried=1), tally(completed=2)], report_of(row)) == []


@pytest.mark.parametrize(
    ("row", "found"),
    [
        ({"name": "send", "completed": 4, "retried": 0, "dead": 0}, ("send", "completed", 5, 4)),
        ({"name": "send", "completed": 5, "retried": 1, "dead": 0}, ("send", "retried", 0, 1)),
    ],
)
def test_a_report_that_says_something_else_is_told(row, found):
    assert differences([tally(completed=5)], report_of(row)) == [found]


def test_a_name_that_only_one_side_knows_is_a_difference():
    missing = differences([tally(dead=2)], report_of())
    surplus = differences([], report_of({"name": "x", "completed": 1, "retried": 0, "dead": 0}))

    assert missing == [("send", "dead", 2, 0)]
    assert surplus == [("x", "completed", 0, 1)]
