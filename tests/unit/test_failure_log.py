"""The log of failures: every kind once in a while, sums of the others, and bounded memory."""

from __future__ import annotations

import logging
import re

import pytest

from chasquimq.engine import failure_log
from chasquimq.engine.failure_log import FailureLog
from chasquimq.model.delivery import Delivery, Failure
from chasquimq.model.retry import Retry

FAILURE = Failure("ValueError", "no")


def failed(name: str) -> Delivery:
    return Delivery(b"1-0", "job-1", name, b"", 0, 0, 0, None, None, None, b"")


@pytest.fixture
async def log(caplog):
    caplog.set_level(logging.WARNING, "chasquimq")
    log = FailureLog("mails")
    yield log
    log.flush()


def note(log: FailureLog, name: str, times: int = 1) -> None:
    for _ in range(times):
        log.failed(failed(name), ValueError("no"), FAILURE, Retry(1, 1))


def lines(caplog) -> list[str]:
    return [record.getMessage().split("\n")[0] for record in caplog.records]


async def test_a_kind_is_logged_once_and_the_others_are_in_the_sum(log, caplog):
    note(log, "mail", times=3)
    note(log, "charge", times=2)
    log.flush()

    *full, rest = lines(caplog)
    assert [line.split(" (")[1][:5] for line in full] == ["mail)", "charg"]
    assert rest == (
        "3 more runs of queue mails failed in the last 1 s, without tracebacks here: "
        "2 mail (ValueError), 1 charge (ValueError)"
    )
    log.flush()
    assert len(lines(caplog)) == 3


async def test_a_kind_is_logged_again_after_a_minute(log, caplog, monkeypatch):
    note(log, "mail", times=2)
    monkeypatch.setattr(failure_log, "_MINUTE_S", 0.0)
    note(log, "mail")

    assert len(lines(caplog)) == 2


async def test_names_that_are_made_up_do_not_fill_the_memory(log, caplog):
    for at in range(3_000):
        note(log, f"name-{at}", times=2)
    log.flush()

    *full, rest = lines(caplog)
    assert log.failed_kinds.kind_count == 1_000
    assert len(full) == 3_000
    counts = [
        int(one.replace(",", "")) for one in re.findall(r"([\d,]+) (?:name|other|of other)", rest)
    ]
    assert rest.startswith("3,000 more runs")
    assert sum(counts) == 3_000
    assert len(rest) < 500


async def test_one_kind_too_many_makes_only_the_oldest_forgotten(log, caplog):
    for at in range(1_001):
        note(log, f"name-{at}")
    caplog.clear()

    note(log, "name-1")
    assert caplog.records == []
    note(log, "name-0")
    assert len(caplog.records) == 1
