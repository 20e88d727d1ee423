"""Runs as columns and as records say the same."""

import pytest

from chasquimq.model.delivery import Delivery
from chasquimq.telemetry.records import CompletedRuns, RunColumns
from chasquimq.telemetry.sink import JobOutcome

OFFSET_US = 1_794_726_955_000_000


def delivery(name="mail", **changes):
    fields = {
        "entry_id": b"1794726955004-0", "job_id": "j", "name": name, "payload": b"",
        "created_at_ms": 0, "spent": 1, "earlier": 1, "retry": None, "extras": None,
        "due_ms": None, "envelope": b"", "started_ns": 5_000_000, "duration_us": 42,
    }  # fmt: skip
    return Delivery(**(fields | changes))


def test_records_and_columns_of_a_run_agree():
    runs = CompletedRuns([delivery(), delivery("sms", duration_us=7)], OFFSET_US)

    assert list(runs) == [
        JobOutcome("ok", 3, 42, "mail", 1_000),
        JobOutcome("ok", 3, 7, "sms", 1_000),
    ]
    assert (runs.names, runs.durations_us, runs.waits_us) == (
        ["mail", "sms"],
        [42, 7],
        [1_000, 1_000],
    )
    assert (len(runs), runs[1].name, [run.name for run in runs[:1]]) == (2, "sms", ["mail"])


def test_one_record_is_made_without_the_others():
    runs = CompletedRuns([delivery(), None, delivery("sms")], OFFSET_US)

    assert (runs[0].name, runs[-1].name) == ("mail", "sms")
    with pytest.raises(IndexError):
        runs[3]


def test_a_start_before_the_job_was_ready_waited_for_no_time():
    early = delivery(started_ns=1_000)

    assert CompletedRuns([early, delivery()], OFFSET_US).waits_us == [0, 1_000]


@pytest.mark.parametrize("names", [["a"], ["a", "a"], ["a", "b", "a"]], ids=" ".join)
def test_columns_of_several_batches_come_back_by_name(names):
    columns = RunColumns()
    for at, name in enumerate(names):
        columns.add(CompletedRuns([delivery(name, duration_us=at)], OFFSET_US))

    found = {name: durations_us for name, durations_us, _ in columns.by_name()}

    assert len(columns) == len(names)
    assert found == {
        name: [at for at, one in enumerate(names) if one == name] for name in set(names)
    }


def test_no_runs_have_no_names():
    assert list(RunColumns().by_name()) == []
