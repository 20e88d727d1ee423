"""A run is kept as figures, tables and pictures; without matplotlib a sentence says why not all."""

import json
import sys

import pytest

from benchmarks.growth import Grown
from benchmarks.latency import Waited
from benchmarks.report import make_document
from benchmarks.rounds import BenchSettings, Measured
from benchmarks.run import Outcome
from benchmarks.scenario import SCENARIOS, Figures
from benchmarks.server import Target
from benchmarks.tables import keep, markdown, notes, tables, what_rows

MACHINE = {"cpu": "a fast one", "cores": 2, "python": "3.11.7", "load_average": (0.4, 0.2, 0.1)}
TARGET = Target(url="redis://localhost", kind="redis", version="8.6.2", is_private=True)
FIGURES = Figures(
    jobs=1000, seconds=0.01, cpu_seconds=0.002, version="1", loop="uvloop", began_s=0,
    concurrency=100, payload_digest="0", server_cpu_share=0.97,
)  # fmt: skip
WAITS = {"p50": 0.5, "p99": 1.5, "p99.9": 2.5, "max": 9.0}
WAITED = Waited(
    side="ours", share=0.5, share_of="ours", jobs=200, wanted_per_s=100, arrived_per_s=99, wait_ms=WAITS,
    late_ms=WAITS,
)  # fmt: skip
GROWN = Grown(dimension="backlog", size=10_000, side="ours", figures=FIGURES)


@pytest.fixture
def document() -> dict:
    scenario = SCENARIOS["consume-100"]
    measured = Measured(scenario, {"ours": [FIGURES], "limit": [FIGURES]})
    outcome = Outcome(
        measured=[measured], waited=[WAITED], grown=[GROWN], missing={}, failed={}, took_s=1
    )
    return make_document(MACHINE, TARGET, BenchSettings(scenarios=[scenario], rounds=1), outcome)


def test_every_part_has_a_table(document):
    scenarios, latency, growth = tables(document)

    assert [row["server CPU"] for row in scenarios] == ["97%", "97%"]
    assert latency[0]["p99.9 ms"] == "2.50"
    assert (growth[0]["what grows"], growth[0]["bound by"]) == ("backlog 10,000", "server")


def test_every_part_is_said_what_it_measures(document):
    assert [row["scenario"] for row in what_rows(document)] == [
        "consume-100",
        "latency",
        "growth-backlog",
    ]


def test_where_the_server_is_the_limit_is_said(document):
    assert "the server is the limit of ours in: consume-100" in notes(document)
    assert "the server is the limit of ours from: backlog 10,000 (97% of a core)" in notes(document)


def test_the_page_has_every_round(document):
    assert "| consume-100 | ours | 100,000 |" in markdown(document)


def test_figures_tables_and_charts_are_kept_under_one_name(document, tmp_path):
    pytest.importorskip("matplotlib")

    written, why_no_charts = keep(document, tmp_path / "new")

    assert why_no_charts is None
    assert json.loads(written[0].read_text())["growth"][0]["bound_by"] == "server"
    assert [path.suffix for path in written] == [".json", ".md", ".png", ".png", ".png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written[2:])


def test_without_matplotlib_a_sentence_says_what_to_install(document, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)

    written, why_no_charts = keep(document, tmp_path)

    assert why_no_charts == (
        "charts need matplotlib, which is not installed; .venv/bin/python -m pip install matplotlib"
    )
    assert [path.suffix for path in written] == [".json", ".md"]
