"""What is missing is written down, or stops a pipeline that must not lose anything."""

from __future__ import annotations

import pytest

from chasquimq.errors import StoreError

pytestmark = pytest.mark.takes_turns


def test_numbers_that_are_missing_are_in_the_ledger(feed, pipeline, ask):
    feed.attempts(2)
    feed.skip(3)
    feed.attempts(2, lost=40)

    run = pipeline().once()

    assert run.lost == 43
    gaps = ask("select cause, lost, unit, channel from bronze_gaps order by cause")
    assert gaps == [
        {"cause": "lost", "lost": 40, "unit": "attempts", "channel": "history"},
        {"cause": "sequence", "lost": 3, "unit": "entries", "channel": "history"},
    ]


def test_a_number_missing_between_two_runs_of_the_pipeline_is_in_the_ledger(feed, pipeline, ask):
    feed.attempts(2)
    pipeline().once()
    feed.skip(1)
    feed.attempts(2)

    pipeline().once()

    assert ask("select cause, lost from bronze_gaps") == [{"cause": "sequence", "lost": 1}]


def test_entries_that_were_trimmed_are_in_the_ledger(feed, pipeline, ask):
    feed.attempts(2)
    pipeline().once()
    feed.attempts(2, 2, 2)
    feed.trim(feed.keys.history, 1)

    run = pipeline().once()

    assert run.lost == 2
    causes = {row["cause"]: row["lost"] for row in ask("select cause, lost from bronze_gaps")}
    assert causes == {"trimmed": 2, "sequence": 2}


def test_a_loss_stops_a_pipeline_that_must_not_lose(feed, pipeline):
    feed.attempts(2)
    pipeline(fail_on_data_loss=True).once()
    feed.attempts(2, 2)
    feed.trim(feed.keys.history, 1)

    with pytest.raises(StoreError, match="every entry of the history"):
        pipeline(fail_on_data_loss=True).once()
