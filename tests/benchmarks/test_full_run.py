"""The tables of a run replace those of the last one in the page, and nothing else."""

from pathlib import Path

from benchmarks import full_run

ROOT = Path(__file__).parents[2]


def test_tables_stand_between_the_marks_and_rounds_stay_outside(tmp_path):
    tables = tmp_path / "run.md"
    tables.write_text("| new |\n\nRounds:\n\n| raw |\n")
    page = f"before\n{full_run.BEGIN}\nold\n{full_run.END}\nafter\n"

    once = full_run.with_run(page, tables)

    assert "| new |" in once
    assert "old" not in once
    assert "| raw |" not in once
    assert (once.startswith("before\n"), once.endswith("after\n")) == (True, True)
    assert full_run.with_run(once, tables) == once


def test_the_page_has_the_marks():
    page = (ROOT / "benchmarks/README.md").read_text()

    assert page.index(full_run.BEGIN) < page.index(full_run.END)
