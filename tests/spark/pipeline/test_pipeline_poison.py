"""Numbers that no clock tells and ids that no calendar holds pass through a whole batch."""

from __future__ import annotations

import pytest

from support.attempts import attempts, entry

WILD_IDS = ["1700000000000000-0", f"{2**62}-0"]
pytestmark = pytest.mark.takes_turns


@pytest.mark.parametrize("wild_id", WILD_IDS, ids=["microseconds", "no calendar"])
def test_a_wild_history_stops_no_pipeline(feed, pipeline, ask, wild_id):
    feed.attempts(2)
    feed.packed(attempts(1, durations_us=2**63 - 1))
    feed.packed(attempts(1, backoffs_ms=2**60))
    feed.call("XADD", feed.keys.history, wild_id, *entry(3, seq=9, run="wild"))

    pipeline(channel="history").once()

    assert ask("select sum(started)::int n from gold_minute") == [{"n": 5}]
    assert ask("select count(*) n from silver_attempts") == [{"n": 5}]
    assert ask("select sum(lost)::int n from bronze_gaps where cause = 'unreadable'") == [{"n": 2}]
    assert ask("select count(*) n from bronze_runs where run = 'wild'") == [{"n": 1}]


def test_wild_events_stop_no_pipeline(feed, pipeline, ask):
    key = feed.keys.events
    ended = ("e", "completed", "ts", "1794830400900", "n", "mail", "attempt", "1")
    feed.foreign(key, *ended, "id", "a", "duration_us", str(2**63 - 1))
    feed.foreign(key, "e", "failed", "id", "b", "ts", "1794830400900", "attempt", "1")
    feed.foreign(
        key, "e", "retry-scheduled", "id", "b", "ts", "1794830400900", "backoff_ms", str(2**60)
    )
    feed.foreign(key, *ended, "id", "7ZZZZZZZZZ" + "0" * 16, "duration_us", "5")
    for at, wild_id in enumerate(WILD_IDS):
        feed.call("XADD", key, wild_id, *ended, "id", f"wild-{at}", "duration_us", "5")

    pipeline(channel="events").once()

    assert ask("select sum(completed)::int c, sum(retried)::int r from gold_minute") == [
        {"c": 4, "r": 1}
    ]
    assert ask("select count(*) n from silver_attempts where ended_at is not null") == [{"n": 5}]
