"""The example of the page runs, and prints what the page says."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[3] / "examples/spark/fill_queue.py"


@pytest.mark.takes_turns
def test_the_example_fills_a_queue_once(spark, url, queue_name, tmp_path, capsys):
    spec = importlib.util.spec_from_file_location("fill_queue", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    example.QUEUE, example.ORDERS = queue_name, 5_000

    example.main(spark, url, tmp_path)

    assert capsys.readouterr().out.splitlines() == [
        "5,000 rows: 0 added, 5,000 were there",
        "5,000 jobs wait; customer-0 owes 10,000 cents",
    ]
