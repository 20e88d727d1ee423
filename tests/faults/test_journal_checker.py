"""The checker itself: each bad history is flagged, by the right rule and by no other."""

from __future__ import annotations

import pytest

from support.journal import END_ERR, END_OK, START, Journal, Line, check, read_journals

RULES = ("lost", "dup_starts", "dup_completions", "over_attempts", "overlaps")


def line(t_s, event, pid=1, job_id="a"):
    return Line(t_s, pid, event, job_id, 0)


CLEAN = [line(1, START), line(2, END_OK)]
RETRIED = [line(1, START), line(2, END_ERR), line(3, START, 2), line(4, END_OK, 2)]
HISTORIES = [
    pytest.param(CLEAN, set(), {}, id="clean"),
    pytest.param([], {"lost"}, {}, id="never_started"),
    pytest.param([line(1, START)], {"lost"}, {}, id="never_ended"),
    pytest.param([line(1, START), line(2, END_ERR)], {"lost"}, {}, id="failed_and_forgotten"),
    pytest.param(RETRIED, {"dup_starts"}, {}, id="started_twice"),
    pytest.param(
        [*CLEAN, line(3, START), line(4, END_OK)], {"dup_starts", "dup_completions"}, {},
        id="completed_twice",
    ),
    pytest.param(
        [line(1, START), line(2, START, 2), line(3, END_OK, 2), line(4, END_OK)],
        {"dup_starts", "dup_completions", "overlaps"}, {}, id="two_at_once",
    ),
    pytest.param(
        [line(1, START), line(3, START, 2), line(4, END_OK, 2)], {"dup_starts"}, {1: 2.0},
        id="started_again_after_a_kill",
    ),
    pytest.param(
        [line(1, START), line(2, START, 2), line(4, END_OK, 2)], {"dup_starts", "overlaps"},
        {1: 3.0}, id="started_again_before_the_kill",
    ),
    pytest.param(
        [one for t_s in range(4) for one in (line(t_s, START), line(t_s + 0.5, END_ERR))],
        {"lost", "dup_starts", "over_attempts"}, {}, id="more_starts_than_allowed",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("lines", "broken", "killed"), HISTORIES)
def test_a_history_is_flagged_by_the_rules_it_breaks(lines, broken, killed):
    report = check(lines, added=["a"], killed=killed, attempts_max=3)

    assert {rule for rule in RULES if getattr(report, rule)} == broken


def test_a_buried_job_is_not_lost():
    assert check([], added=["a"], buried=["a"]).lost == []


def test_the_wait_after_a_kill_is_measured():
    lines = [line(1, START), line(3.5, START, 2), line(4, END_OK, 2)]

    assert check(lines, added=["a"], killed={1: 2.0}).restart_s == [1.5]


def test_what_is_noted_is_what_is_read(tmp_path):
    journal = Journal(tmp_path / "1.journal")
    journal.note(START, "job/1", 2)
    journal.note(END_OK, "job/1", 2)
    journal.close()

    lines = read_journals(tmp_path)

    assert [(one.event, one.job_id, one.attempt) for one in lines] == [
        (START, "job/1", 2),
        (END_OK, "job/1", 2),
    ]
