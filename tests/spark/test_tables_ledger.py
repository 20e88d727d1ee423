"""Which entries were seen: numbers of runs without a hole, and every hole written down."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pyarrow as pa
import pytest

from chasquimq.spark.lake.ledger import Gap, Ledger, RunPart, event_gaps, lost_total, sequence_gaps
from chasquimq.spark.pipeline.tables.bronze import bronze_gaps
from chasquimq.spark.schema import ATTEMPTS_ARROW, EVENTS_ARROW, GAP, MARK, UNREADABLE


def entry(seq: int | None, **columns):
    """The first row of an entry, as the source yields it."""
    told = {
        "queue": "mail", "stream_id": f"{1_000 + (seq or 0)}-0", "worker": "w1", "run": "r1",
        "seq": seq, "row": 0, "outcome": "completed", "entry_rows": 2, "lost": 0, "is_last": False,
    }  # fmt: skip
    return dict.fromkeys(ATTEMPTS_ARROW.names) | told | columns


def ledger(*rows) -> Ledger:
    ledger = Ledger()
    ledger.see(pa.RecordBatch.from_pylist(list(rows), ATTEMPTS_ARROW))
    return ledger


def part(first: int, last: int, *, run: str = "r1") -> RunPart:
    return RunPart(
        queue="mail", worker="w1", run=run, first_seq=first, last_seq=last,
        first_id=f"{1_000 + first}-0", last_id=f"{1_000 + last}-0",
    )  # fmt: skip


def holes(gaps: list[Gap]) -> list[tuple[str, int | None, str]]:
    return [(gap.after_id, gap.lost, gap.cause) for gap in gaps]


def test_a_run_is_followed_from_its_first_entry_to_its_last():
    seen = ledger(entry(1), entry(2), entry(3, outcome=MARK, row=-1, entry_rows=0, is_last=True))

    (run,) = seen.parts
    assert (run.first_seq, run.last_seq, run.entries, run.attempts) == (1, 3, 3, 4)
    assert run.is_ended
    assert seen.gaps == []


def test_other_rows_of_an_entry_say_nothing_about_it():
    seen = ledger(entry(1), entry(None, row=1, run="r1", entry_rows=None, lost=None))

    assert [run.entries for run in seen.parts] == [1]


def test_a_missing_number_within_a_task_is_a_gap():
    seen = ledger(entry(1), entry(5))

    assert holes(seen.gaps) == [("1001-0", 3, "sequence")]


def test_runs_do_not_hide_the_gaps_of_each_other():
    seen = ledger(entry(1), entry(1, run="r2"), entry(2, run="r2"), entry(3))

    assert holes(seen.gaps) == [("1001-0", 1, "sequence")]


def test_attempts_that_a_worker_gave_up_are_a_gap_of_attempts():
    seen = ledger(entry(1, lost=40))

    (gap,) = seen.gaps
    assert (gap.lost, gap.cause, gap.unit, gap.worker) == (40, "lost", "attempts", "w1")


def test_entries_that_were_trimmed_are_a_gap_of_entries():
    trimmed = entry(
        None, outcome=GAP, row=-1, run=None, worker=None, lost=7, error_class="trimmed", error="why"
    )

    (gap,) = ledger(trimmed).gaps
    assert (gap.lost, gap.cause, gap.unit, gap.detail) == (7, "trimmed", "entries", "why")


def test_an_unreadable_entry_is_a_gap_and_keeps_its_number():
    seen = ledger(entry(1), entry(2, outcome=UNREADABLE, row=-1, error="no columns"), entry(3))

    assert holes(seen.gaps) == [("1002-0", 1, "unreadable")]


def test_numbers_go_on_from_task_to_task_and_from_batch_to_batch():
    assert sequence_gaps([part(4, 6), part(7, 9)], {("mail", "r1"): (3, "1003-0")}) == []


def test_a_number_missing_between_two_batches_is_a_gap():
    gaps = sequence_gaps([part(6, 9)], {("mail", "r1"): (3, "1003-0")})

    assert holes(gaps) == [("1003-0", 2, "sequence")]


def test_a_number_missing_between_two_tasks_is_a_gap():
    assert holes(sequence_gaps([part(5, 6), part(1, 3)], {})) == [("1003-0", 1, "sequence")]


def test_a_run_first_seen_in_its_middle_has_lost_its_beginning():
    assert holes(sequence_gaps([part(3, 4)], {})) == [("0-0", 2, "sequence")]


def test_an_entry_that_was_trimmed_is_not_counted_twice():
    trimmed = [
        Gap(queue="q", worker=None, after_id="1-0", noticed_id="1-0", lost=9, cause="trimmed", unit="entries"),
        Gap(queue="q", worker="w", after_id="1-0", noticed_id="2-0", lost=9, cause="sequence", unit="entries"),
        Gap(queue="q", worker="w", after_id="1-0", noticed_id="2-0", lost=5, cause="lost", unit="attempts"),
    ]  # fmt: skip

    assert lost_total(trimmed) == 14
    assert lost_total([]) == 0


def test_events_tell_of_gaps_and_of_what_cannot_be_read():
    rows = [
        {"queue": "mail", "stream_id": "5-0", "event": GAP, "lost": 3, "fault": "trimmed", "reason": "why"},
        {"queue": "mail", "stream_id": "6-0", "event": UNREADABLE, "fault": "no event"},
        {"queue": "mail", "stream_id": "7-0", "event": "active", "job_id": "a"},
    ]  # fmt: skip
    full = [dict.fromkeys(EVENTS_ARROW.names) | row for row in rows]

    gaps = event_gaps(pa.RecordBatch.from_pylist(full, EVENTS_ARROW))

    assert holes(gaps) == [("5-0", 3, "trimmed"), ("6-0", 1, "unreadable")]
    assert [gap.detail for gap in gaps] == ["why", "no event"]


NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)


@pytest.mark.parametrize("cause", ["trimmed", "reset"])
def test_entries_that_were_gone_count_for_the_day_on_which_that_was_noticed(cause):
    told = {"row": -1, "run": None, "outcome": GAP, "error_class": cause, "lost": 4}
    event = {"queue": "mail", "stream_id": "1003-0", "event": GAP, "fault": cause, "lost": 4}
    gaps = ledger(entry(3, **told)).gaps + event_gaps(
        pa.RecordBatch.from_pylist([dict.fromkeys(EVENTS_ARROW.names) | event], EVENTS_ARROW)
    )

    rows = bronze_gaps(gaps, "history", 0, NOON).to_pylist()

    assert [(row["after_id"], row["event_date"]) for row in rows] == [("1003-0", NOON.date())] * 2


def test_an_unreadable_entry_counts_for_its_own_day():
    gaps = ledger(entry(3, outcome=UNREADABLE, row=-1)).gaps

    (row,) = bronze_gaps(gaps, "history", 0, NOON).to_pylist()

    assert row["event_date"] == date(1970, 1, 1)
