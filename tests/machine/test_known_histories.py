"""Histories that have gone wrong somewhere once, told step by step on every kind of server."""

from __future__ import annotations

import pytest

from chasquimq import UnrecoverableError
from machine.queue_machine import QueueMachine
from machine.stepped_worker import HOUR_MS

NO, NEVER = ValueError, UnrecoverableError
READ = ("read", {"pick": 0, "loses_reply": False})
LATER = ("add", {"name": "slow", "delay_ms": HOUR_MS, "budget": None})
DIE = ("crash", {"pick": 0, "is_long_ago": True})
LOSE = ("mishap", {"pick": 0, "what": "lose_a_reply"})
FULL = ("mishap", {"pick": 0, "what": "run_out_of_memory"})
ROOM = ("find_memory", {})
PLAN = ("plan_a_repeat", {"limit": None})
HOUR = ("pass_an_hour", {"pick": 0})


def ends(fate=None, pick=0):
    return ("end", {"pick": pick, "fate": fate})


def flushes(*, loses_reply=False, pick=0):
    return ("flush", {"pick": pick, "loses_reply": loses_reply})


def works(fate=None):
    return ("work", {"pick": 0, "fate": fate})


def late(fate, of_other=None):
    return ("come_back_late", {"pick": 0, "fate": fate, "of_other": of_other})


def promotes(*, loses_reply):
    return ("promote", {"pick": 0, "loses_reply": loses_reply})


HISTORIES = {
    "a late failure while another runs it": [READ, late(NO)],
    "a late surrender while another runs it": [READ, late(NEVER)],
    "a late success while another runs it": [READ, late(None)],
    "a late failure after another completed it": [READ, late(NO, [None])],
    "a late surrender after another completed it": [READ, late(NEVER, [None])],
    "a late success after another buried it": [READ, late(None, [NEVER])],
    "a late success after another retried it": [READ, late(None, [NO]), HOUR, works()],
    "a late surrender after another buried it": [READ, late(NEVER, [NEVER])],
    "a late failure after another retried it": [READ, late(NO, [NO]), HOUR, works()],
    "its own job comes back to a worker": [
        READ, ("stand_still", {"pick": 0, "reader": 0}), ("stand_still", {"pick": 1, "reader": 0}),
        ends(), ends(), flushes(), flushes(pick=1),
    ],
    "a job that kills its workers": [READ, DIE, READ, DIE, READ, DIE, READ, flushes()],
    "failures up to the budget": [works(NO), HOUR, works(NO), HOUR, works(NO)],
    "a completion whose answer is lost": [READ, ends(), flushes(loses_reply=True)],
    "a retry whose answer is lost": [READ, ends(NO), flushes(loses_reply=True), HOUR, works()],
    "a burial whose answer is lost": [READ, ends(NEVER), flushes(loses_reply=True)],
    "a read whose answer is lost": [("read", {"pick": 0, "loses_reply": True}), READ, works()],
    "a promotion whose answer is lost": [
        LATER, ("fall_due", {"pick": 0}), promotes(loses_reply=True), promotes(loses_reply=False),
    ],
    "two promoters at once": [LATER, LATER, ("fall_due", {"pick": 0}), ("promote_together", {})],
    "a promotion before the time": [LATER, promotes(loses_reply=False)],
    "two schedulers at once": [
        PLAN, ("fire", {"schedulers": 2, "pick": 0}), ("fire", {"schedulers": 2, "pick": 1}),
    ],
    "an add whose answer is lost": [
        LOSE, ("add", {"name": "slow", "delay_ms": 0, "budget": 1}), LOSE, LATER,
    ],
    "a bulk whose answer is lost": [LOSE, ("add_bulk", {"count": 3, "delay_ms": HOUR_MS})],
    "an add under a cap whose answer is lost": [
        ("add_under_the_cap", {}), LOSE, ("add_under_the_cap", {}),
    ],
    "an own id whose answer is lost": [
        LOSE, ("add_unique", {"name": "slow", "delay_ms": 0, "own_id": "own 0"}), LOSE,
        ("add_unique", {"name": "slow", "delay_ms": HOUR_MS, "own_id": "own 0"}),
    ],
    "a cancel whose answer is lost, and the id again": [
        ("add_unique", {"name": "slow", "delay_ms": HOUR_MS, "own_id": "own 0"}), LOSE,
        ("cancel", {"pick": 0}),
        ("add_unique", {"name": "slow", "delay_ms": HOUR_MS, "own_id": "own 0"}),
    ],
    "a replay whose answer is lost": [works(NEVER), LOSE, ("replay", {"limit": 2}), works(NEVER)],
    "a replay of what is replayed": [works(NEVER), ("replay", {"limit": 3}), works(NEVER),
        ("replay", {"limit": 3}), works()],
    "two replays at once": [works(NEVER), ("replay_together", {}), works()],
    "a retry that is cancelled": [works(NO), ("cancel", {"pick": 0}), HOUR, works()],
    "no memory while jobs end": [
        READ, FULL, ends(NO), flushes(), LATER, promotes(loses_reply=False), ends(NEVER), flushes(),
        ROOM, HOUR, works(),
    ],
    "no memory when jobs fall due": [LATER, FULL, HOUR, PLAN, ROOM, HOUR, works()],
    "entries deleted under their runs": [
        READ, *[("mishap", {"pick": at, "what": "delete_an_entry"}) for at in range(3)],
        ends(), ends(NO), flushes(), ("sweep", {"pick": 0}),
    ],
    "the group is lost under runs": [
        READ, ("mishap", {"pick": 0, "what": "lose_the_group"}), READ, ends(), flushes(), works(),
    ],
    "the stream is lost under runs": [
        READ, ("mishap", {"pick": 1, "what": "lose_the_group"}), READ, ends(NO), flushes(), works(),
    ],
    "scripts are forgotten": [
        READ, ("mishap", {"pick": 0, "what": "forget_scripts"}), ends(NO), flushes(), HOUR, works(),
    ],
    "a stop with jobs that run and jobs that wait": [READ, ("stop", {"pick": 0}), works()],
    "jobs that wait for long before they start": [
        READ, ("beat", {"pick": 0, "is_waiting_long": True}), DIE, READ, DIE, READ, works(),
    ],
}  # fmt: skip


# It may run out of memory.
@pytest.mark.file_server
@pytest.mark.parametrize("has_natives", [True, False], ids=["as probed", "fallbacks"])
@pytest.mark.parametrize("steps", HISTORIES.values(), ids=HISTORIES)
def test_a_known_history_ends_well(url, steps, has_natives):
    machine = QueueMachine(url)
    try:
        machine.first_steps(has_natives=has_natives, worker_count=2)
        machine.look()
        for name, arguments in steps:
            getattr(machine, name)(**arguments)
            machine.look()
    finally:
        machine.teardown()
