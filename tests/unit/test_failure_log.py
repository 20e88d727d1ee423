"""The log of failures: every kind once in a while, and no more memory than a bound."""

from __future__ import annotations

import logging
from typing import NamedTuple

import pytest

from chasquimq.engine import failure_log
from chasquimq.engine.failure_log import FailureLog
from chasquimq.model.verdict import Failure

FAILURE = Failure("ValueError", "no")


class Failed(NamedTuple):
    """What the log asks a delivery for."""

    name: str
    job_id: str = "job-1"
    run_number: int = 1


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.WARNING, "chasquimq")
    return FailureLog()


def note(log: FailureLog, name: str, times: int = 1) -> None:
    for _ in range(times):
        log.note(Failed(name), ValueError("no"), FAILURE, "retried")


def test_a_kind_is_told_once_and_what_was_not_told_is_counted(log, caplog, monkeypatch):
    note(log, "mail", times=3)
    monkeypatch.setattr(failure_log, "_AGAIN_S", 0.0)
    note(log, "mail")

    assert [line.chasqui_untold for line in caplog.records] == [0, 2]


def test_names_that_are_made_up_do_not_fill_the_memory(log, caplog):
    for at in range(3_000):
        note(log, f"name-{at}", times=2)

    assert log.kind_count == 1_000
    assert len(caplog.records) == 3_000


def test_one_kind_too_many_makes_only_the_oldest_forgotten(log, caplog):
    for at in range(1_001):
        note(log, f"name-{at}")
    caplog.clear()

    note(log, "name-1")
    assert caplog.records == []
    note(log, "name-0")
    assert len(caplog.records) == 1
