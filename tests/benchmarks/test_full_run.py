"""The tables of a run replace those of the last one in the page, and nothing else."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def full_run():
    spec = importlib.util.spec_from_file_location("full_run", ROOT / "benchmarks/full_run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_tables_stand_between_the_marks_and_rounds_stay_outside(full_run, tmp_path):
    tables = tmp_path / "run.md"
    tables.write_text("| new |\n\nRounds:\n\n| raw |\n")
    page = f"before\n{full_run.BEGIN}\nold\n{full_run.END}\nafter\n"

    once = full_run.with_run(page, tables)

    assert "| new |" in once
    assert "old" not in once
    assert "| raw |" not in once
    assert (once.startswith("before\n"), once.endswith("after\n")) == (True, True)
    assert full_run.with_run(once, tables) == once


def test_the_page_has_the_marks(full_run):
    page = (ROOT / "benchmarks/README.md").read_text()

    assert page.index(full_run.BEGIN) < page.index(full_run.END)
