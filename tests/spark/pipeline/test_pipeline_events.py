"""Queues that are read from their events, the original's too."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest

from wire.vectors import load

pytestmark = pytest.mark.takes_turns


def tell_clean_run(feed) -> None:
    for one in load("events")["events_clean_run"]["events"]:
        feed.foreign(feed.keys.events, *(part for pair in one["fields"] for part in pair))


def test_a_queue_of_the_original_is_read_from_its_events(feed, pipeline, ask):
    tell_clean_run(feed)

    run = pipeline(channel="events").once()

    assert (run.rows, run.channels) == (14, {feed.queue: "events"})
    minute = (
        "select sum(started)::int s, sum(completed)::int c, sum(retried)::int r from gold_minute"
    )
    assert ask(minute) == [{"s": 5, "c": 4, "r": 1}]
    assert ask("select attempts, status from silver_jobs where name = 'fl'") == [
        {"attempts": 2, "status": "completed"}
    ]
    assert ask("select count(*) n from silver_open") == [{"n": 0}]


def test_events_whose_end_comes_in_a_later_batch_are_one_attempt(feed, pipeline, ask):
    key = feed.keys.events
    feed.foreign(key, "e", "active", "id", "a", "ts", "1794830400000", "n", "mail", "attempt", "1")
    pipeline(channel="events").once()
    running = ask("select job_id, status, attempts from silver_jobs")
    feed.foreign(
        key, "e", "completed", "id", "a", "ts", "1794830400900", "n", "mail", "attempt", "1",
        "duration_us", "899000",
    )  # fmt: skip

    pipeline(channel="events").once()

    assert running == [{"job_id": "a", "status": "active", "attempts": 0}]
    assert ask("select job_id, status, attempts from silver_jobs") == [
        {"job_id": "a", "status": "completed", "attempts": 1}
    ]
    (row,) = ask("select started_at from silver_attempts")
    assert row["started_at"] == datetime(2026, 11, 16, 12, tzinfo=UTC)
    assert ask("select count(*) n from silver_open") == [{"n": 0}]


def test_a_day_of_events_that_is_made_again_leaves_no_files_of_its_making(feed, pipeline, settings):
    tell_clean_run(feed)
    pipeline(channel="events").once()

    pipeline(channel="events").backfill(datetime.now(UTC).date())

    assert not (settings.lake / "_pipeline" / "backfill" / "staging").exists()


def test_a_day_of_events_that_is_made_again_is_the_same(feed, pipeline, ask):
    tell_clean_run(feed)
    pipeline(channel="events").once()
    questions = [
        "select * from silver_attempts order by job_id, attempt",
        "select * from silver_jobs order by job_id",
        "select * exclude (run_kll, wait_kll) from gold_minute order by all",
    ]
    before = [ask(question) for question in questions]

    pipeline(channel="events").backfill(datetime.now(UTC).date())

    assert [ask(question) for question in questions] == before


def test_an_attempt_that_began_days_before_keeps_its_start_when_its_day_is_made_again(
    feed, pipeline, ask
):
    now_ms = time.time_ns() // 1_000_000
    begun_ms = now_ms - 4 * 24 * 3_600_000
    start = ["e", "active", "id", "a", "ts", f"{begun_ms}", "n", "mail", "attempt", "1"]
    feed.call("XADD", feed.keys.events, f"{begun_ms}-0", *start)
    feed.foreign(feed.keys.events, "e", "completed", "id", "a", "ts", f"{now_ms}", "attempt", "1")
    pipeline(channel="events").once()
    question = "select job_id, name, started_at, ended_at from silver_attempts"
    before = ask(question)

    pipeline(channel="events").backfill(datetime.now(UTC).date())

    assert [row["name"] for row in before] == ["mail"]
    assert ask(question) == before
