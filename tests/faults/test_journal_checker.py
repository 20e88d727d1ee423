"""The checker itself: each bad history is flagged, by the right rule and by no other."""

from __future__ import annotations

import json

import pytest

from chasquimq.wire.history import AttemptOutcome
from support.checker import ACK_WINDOW_S, Evidence, Fault, check
from support.journal import (
    ADD_CALL,
    ADD_ERR,
    ADD_OK,
    ALIVE,
    CANCEL_OK,
    END_ERR,
    END_OK,
    EXIT,
    LEASE_LOST,
    REPLAY_OK,
    STALL,
    START,
    Journal,
    Line,
    read_journals,
)  # fmt: skip
from support.places import Attempt, Places
from support.rules import RULES

MINE, OTHERS = 1, 2


def line(t_s, event, pid=MINE, *, entry="1-0", extra="", attempt=0, generation=0):
    return Line(t_s, pid, event, "a", attempt, generation, entry, extra)


def row(outcome, worker="h:1:x"):
    return Attempt(worker=worker, job_id="a", outcome=outcome)


def kill(t_s, pid=MINE):
    return Fault("kill", t_s, t_s, pid)


ADDED = [line(0, ADD_CALL), line(0.1, ADD_OK)]
RUN = [line(1, START), line(2, END_OK)]
AGAIN = [line(3, START, OTHERS), line(4, END_OK, OTHERS)]
FAILED = [line(1, START), line(2, END_ERR)]
CLEAN = [*ADDED, *RUN]
COUNTERS = {
    "worker": "h:1:x", "completed": 1, "retried": 0, "buried": 0, "stale_outcomes": 0,
    "unproven_outcomes": 0,
}  # fmt: skip
TWICE_AT_ONCE = [line(1, START), line(2, START, OTHERS), line(3, END_OK, OTHERS), line(4, END_OK)]


def bad(rule, lines, *faults, id, **limits):
    places = limits.pop("places", Places())
    lines = sorted(lines, key=lambda one: one.t_s)
    evidence = Evidence(lines=lines, places=places, faults=faults, attempts_max=3, **limits)
    return pytest.param(evidence, rule, id=id)


def good(lines, *faults, id, **limits):
    return bad(None, lines, *faults, id=id, **limits)


BAD = [
    bad("lost", ADDED, id="an acknowledged job that never started"),
    bad("lost", [*ADDED, line(1, START)], kill(2), id="a killed run that nobody took over"),
    bad("lost", [*ADDED, *FAILED], id="a failed run that was forgotten"),
    bad("lost", ADDED, id="a job that is still there after the drain", places=Places(ready=["a"])),
    bad(
        "lost", [*CLEAN, line(5, REPLAY_OK, generation=1)], id="a replayed job that never ran",
    ),
    bad(
        "multi_terminal", CLEAN, id="a job that is completed and dead",
        places=Places(dead=[("a", 0)]),
    ),
    bad(
        "multi_terminal", [*ADDED, *FAILED], id="a job that died twice",
        places=Places(dead=[("a", 0), ("a", 0)]),
    ),
    bad(
        "multi_terminal", CLEAN, id="a job that was committed twice",
        places=Places(attempts=[row(AttemptOutcome.COMPLETED)] * 2),
    ),
    bad("multi_terminal", [*CLEAN, line(0.5, CANCEL_OK)], id="a cancelled job that ran"),
    bad(
        "over_attempts",
        [*ADDED, *(line(n, START, entry=f"{n}-0") for n in (1, 3, 5, 7)),
         *(line(n, END_ERR, entry=f"{n - 1}-0") for n in (2, 4, 6, 8))],
        id="more starts than attempts", places=Places(dead=[("a", 0)]),
    ),
    bad(
        "early", [line(0, ADD_CALL, extra="5000"), line(0.1, ADD_OK), *RUN],
        id="a delayed job that did not wait",
    ),
    bad(
        "early", [*ADDED, line(1, START, extra="1100"), line(2, END_OK)],
        id="a start before the server's due time", server_offset_ms=0.0,
    ),
    bad(
        "late", [*ADDED, line(1, START, extra="100"), line(2, END_OK)],
        id="a start long after the due time", server_offset_ms=0.0, late_p99_ms_max=200,
    ),
    bad(
        "overlap", [*ADDED, *TWICE_AT_ONCE], Fault("cut", 1.5, 3),
        id="two at once after a cut, and the first was not told",
    ),
    bad(
        "overlap", [*ADDED, line(1, START), line(2, START, OTHERS), line(2.9, ALIVE), line(4, END_OK, OTHERS)],
        kill(3), id="a start before the other was killed",
    ),
    bad("dup_starts", [*CLEAN, *AGAIN], id="a second start without any fault"),
    bad(
        "dup_starts", [*CLEAN, line(2.4, ALIVE), *AGAIN], kill(2 + 2 * ACK_WINDOW_S),
        id="a second start of what ended long before the kill",
    ),
    bad("dup_starts", [*CLEAN, *AGAIN], kill(1.5, 3), id="a second start after another's death"),
    bad(
        "metrics", [*CLEAN, line(5, EXIT, extra=json.dumps(COUNTERS | {"completed": 2}))],
        id="a counter that its history denies",
        places=Places(attempts=[row(AttemptOutcome.COMPLETED)], ended_workers=["h:1:x"]),
    ),
    bad("leftovers", CLEAN, id="a ghost", places=Places(ghosts=["1-0"])),
    bad("leftovers", CLEAN, id="a consumer that still holds", places=Places(holders=["h:1:x"])),
    bad("leftovers", CLEAN, id="a key that stays for ever", places=Places(timeless=["k"])),
    bad("leftovers", CLEAN, id="an index of nothing", places=Places(indexed=["a"])),
    bad(
        "events", [*ADDED, *FAILED], id="an end that was told and never was",
        places=Places(dead=[("a", 0)], events=[("completed", "a"), ("dlq", "a")]),
    ),
    bad(
        "events", CLEAN, id="an end that was told twice",
        places=Places(events=[("completed", "a")] * 2),
    ),
    bad("events", CLEAN, id="a death that never was", places=Places(events=[("dlq", "a")])),
    bad(
        "doubled_adds",
        [line(0, ADD_ERR), *RUN, line(3, START, entry="2-0"), line(4, END_OK, entry="2-0")],
        id="an add without an answer that was done twice",
    ),
    bad(
        "doubled_adds", [line(0, ADD_ERR)], id="an add without an answer that is queued twice",
        places=Places(ready=["a"], delayed=["a"], indexed=["a"]), is_drained=False,
    ),
]  # fmt: skip
GOOD = [
    good(CLEAN, id="a clean run"),
    good([line(0, ADD_ERR)], id="an add that failed and is not there"),
    good([line(0, ADD_ERR), *RUN], id="an add that failed and is there once"),
    good([*ADDED, *FAILED], id="a job that died", places=Places(dead=[("a", 0)])),
    good([*ADDED, line(0.5, CANCEL_OK)], id="a cancelled job"),
    good(ADDED, id="a job that waits", is_drained=False, places=Places(ready=["a"])),
    good([*ADDED, line(1, START), *AGAIN], kill(2), id="a run that died with its worker"),
    good([*CLEAN, *AGAIN], kill(2.01), id="an end that the kill kept from the server"),
    good([*CLEAN, *AGAIN], kill(2.9), id="an end after which nobody let its worker run"),
    good(
        [*ADDED, *FAILED, line(3, START, entry="2-0"), line(4, END_OK, entry="2-0")],
        id="a retry in an entry of its own",
    ),
    good([*ADDED, *TWICE_AT_ONCE], Fault("stop", 1.5, 3.5, MINE), id="two at once, one frozen"),
    good([*ADDED, *TWICE_AT_ONCE, line(3.5, STALL, extra="2000")], id="two at once, one starved"),
    good(
        [*ADDED, *TWICE_AT_ONCE, line(1.9, LEASE_LOST)], Fault("cut", 1.5, 3),
        id="two at once after a cut, and the first was told",
    ),
    good(
        [*ADDED, *FAILED, line(3, REPLAY_OK, generation=1),
         line(4, START, entry="2-0", generation=1), line(5, END_OK, entry="2-0", generation=1)],
        id="a replayed job that completed",
        places=Places(events=[("dlq", "a"), ("completed", "a")], dead=[("a", 0)]),
    ),
    good(
        [*CLEAN, line(5, EXIT, extra=json.dumps(COUNTERS))], id="a counter that agrees",
        places=Places(attempts=[row(AttemptOutcome.COMPLETED)], ended_workers=["h:1:x"]),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("evidence", "rule"), BAD)
def test_a_bad_history_is_flagged_by_the_rule_it_breaks_and_by_no_other(evidence, rule):
    verdict = check(evidence)

    assert list(verdict.broken) == [rule]
    assert verdict.line.startswith("FAIL seed 0:")
    with pytest.raises(AssertionError, match=rule):
        verdict.demand()


@pytest.mark.parametrize(("evidence", "rule"), GOOD)
def test_a_good_history_is_not_flagged(evidence, rule):
    assert check(evidence).broken == {}


def test_every_rule_has_a_history_that_breaks_it():
    assert {case.values[1] for case in BAD} == set(RULES)


def test_the_figures_of_a_kill_are_measured():
    lines = [*ADDED, line(1, START), line(3.5, START, OTHERS), line(4, END_OK, OTHERS)]

    figures = check(Evidence(lines=lines, faults=[kill(2)])).figures

    assert (figures["in_flight"], figures["extra_starts"], figures["restart_s_max"]) == (1, 1, 1.5)


def test_a_verdict_is_written_with_its_seed(tmp_path):
    verdict = check(Evidence(lines=CLEAN, seed=7))

    verdict.write(tmp_path / "verdict.json")

    written = json.loads((tmp_path / "verdict.json").read_text())
    assert (written["seed"], written["is_pass"], written["broken"]) == (7, True, {})
    assert verdict.line.startswith("PASS seed 7: jobs 1, starts 1, completions 1")


def test_what_is_noted_is_what_is_read(tmp_path):
    journal = Journal(tmp_path / "1.journal")
    journal.note(START, "job/1", 2, generation=1, delivery="5-0", extra=12)
    journal.note(END_OK, "job/1", 2)
    journal.close()

    first, second = read_journals(tmp_path)

    assert (first.event, first.job_id, first.attempt) == (START, "job/1", 2)
    assert (first.generation, first.delivery, first.extra) == (1, "5-0", "12")
    assert (second.event, second.extra) == (END_OK, "")
