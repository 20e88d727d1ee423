"""A backlog is told in a sentence: when it clears, or what it would take."""

from __future__ import annotations

import pytest

from chasquimq.spark.report.backlog import forecast_sentence
from support.made_lake import minutes

QUIET = {
    "ready": 0, "running": 0, "sampled_at": minutes(0), "consumers": 3, "arrival_rate": 30.0,
    "departure_rate": 20.0, "clears_at": None, "never_clears": None, "breach_at": None,
    "workers_needed": None,
}  # fmt: skip
BUSY = QUIET | {"ready": 1_190, "running": 10}
GROWING = BUSY | {"never_clears": True, "workers_needed": 5}


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        (QUIET, "nothing waits"),
        (BUSY, "1,200 jobs wait; too early to say when they are done"),
        (
            BUSY | {"clears_at": minutes(140), "never_clears": False},
            "1,200 jobs, clears at 14:20 UTC (in 2 h 20 min)",
        ),
        (
            BUSY | {"clears_at": minutes(3 * 1_440), "never_clears": False},
            "1,200 jobs, clears at 2026-11-17 12:00:00 UTC (in 3 d 0 h)",
        ),
        (
            GROWING,
            "1,200 jobs will not clear: needs 2 more workers (30/s arrive, 20/s leave)",
        ),
        (
            GROWING | {"workers_needed": 3, "arrival_rate": 20.0},
            "1,200 jobs will not clear: needs 1 more worker (20/s arrive, 20/s leave)",
        ),
        (
            GROWING | {"consumers": 0, "workers_needed": None, "departure_rate": 0.0},
            "1,200 jobs will not clear: no worker is alive (30/s arrive, 0.0/s leave)",
        ),
        (
            GROWING | {"workers_needed": None, "arrival_rate": None, "breach_at": minutes(5)},
            "1,200 jobs will not clear; its target breaks at 12:05 UTC",
        ),
    ],
)
def test_a_backlog_is_told_with_what_becomes_of_it(row, sentence):
    assert forecast_sentence(row) == sentence
