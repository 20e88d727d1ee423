"""How long a broken connection waits between dials: quick at first, never a storm."""

from __future__ import annotations

import random

import pytest

from chasquimq.model.dialing import dial_delay_ms

SHORTEST, LONGEST = min, max
MINUTE_MS = 60_000


@pytest.mark.parametrize("failures", [-1, 0])
def test_the_first_dial_waits_for_nothing(failures):
    assert dial_delay_ms(failures, LONGEST) == 0


@pytest.mark.parametrize(
    ("failures", "bounds"),
    [(1, (100, 200)), (2, (200, 400)), (3, (400, 800)), (4, (800, 1_600)), (5, (5_400, 6_000)),
     (500, (5_400, 6_000))],
)  # fmt: skip
def test_each_failure_waits_longer_up_to_a_ceiling(failures, bounds):
    assert (dial_delay_ms(failures, SHORTEST), dial_delay_ms(failures, LONGEST)) == bounds


def test_an_outage_of_a_minute_costs_at_most_fifteen_dials():
    dials, at_ms = 0, 0.0
    while at_ms <= MINUTE_MS:
        dials += 1
        at_ms += dial_delay_ms(dials, SHORTEST)

    assert dials <= 15


def test_a_restart_of_a_second_is_met_within_two():
    at_ms, failures = 0.0, 0
    while at_ms < 1_000:
        failures += 1
        at_ms += dial_delay_ms(failures, LONGEST)

    assert at_ms <= 2 * 1_600


def test_two_clients_do_not_dial_in_step():
    dice = random.Random(5)

    waits = {dial_delay_ms(3, dice.uniform) for _ in range(50)}

    assert len(waits) == 50
