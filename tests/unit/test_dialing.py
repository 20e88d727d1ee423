"""How long a broken connection waits between dials: quick at first, never a storm."""

from __future__ import annotations

import random

import pytest

from chasquimq.store.net.connect import DialSchedule, dial_delay_ms, is_young

SHORTEST, LONGEST = min, max
MINUTE_MS = 60_000


@pytest.mark.parametrize("failures", [-1, 0])
def test_the_first_dial_waits_for_nothing(failures):
    assert dial_delay_ms(failures, LONGEST) == 0


@pytest.mark.parametrize(
    ("failures", "bounds"),
    [(1, (100, 200)), (2, (200, 400)), (3, (400, 800)), (4, (800, 1_600)), (5, (5_800, 6_000)),
     (500, (5_800, 6_000))],
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


@pytest.mark.parametrize(
    ("lasted_s", "counts"), [(0.0, True), (0.99, True), (1.0, False), (60, False)]
)
def test_a_connection_is_young_for_a_second(lasted_s, counts):
    assert is_young(1_000.0, 1_000.0 + lasted_s) is counts


def test_young_connections_that_break_are_dialled_ever_later_and_an_old_one_at_once():
    schedule, now_s, waits_ms = DialSchedule(LONGEST), 1_000.0, []
    for lasts_s in (0.5, 0.5, 0.5, 0.5, 0.5, 60.0, 0.5):
        schedule.dialled(now_s)
        opened_s, now_s = now_s, now_s + lasts_s
        schedule.broke(now_s, is_young=is_young(opened_s, now_s))
        waits_ms.append(round(schedule.wait_s(now_s) * 1_000))
        now_s += schedule.wait_s(now_s)

    assert waits_ms == [200, 400, 800, 1_600, 6_000, 0, 200]


class Outage:
    """A connection in a long outage, and callers who come when it is said."""

    def __init__(self, uniform, seed: int) -> None:
        self._schedule = DialSchedule(uniform)
        self._dice = random.Random(seed)
        self.dials_s: list[float] = []

    def lasts(self, demand) -> list[float]:
        """When it dials, where `demand` says for how long somebody waits and for how long nobody."""
        now_s = 1_000.0
        self._schedule.dialled(now_s)
        self._schedule.broke(now_s + 5, is_young=False)
        now_s += 5
        for waits_s, is_quiet_s, is_urgent in demand(self._dice):
            now_s = self._asks(now_s, now_s + waits_s, is_urgent=is_urgent) + is_quiet_s
        return self.dials_s

    def _asks(self, now_s: float, until_s: float, *, is_urgent: bool) -> float:
        self._schedule.asked(now_s)
        while now_s < until_s:
            early = self._schedule.allows_early(now_s, is_urgent=is_urgent)
            if self._schedule.wait_s(now_s) == 0 or early:
                self._schedule.dialled(now_s)
                self.dials_s.append(now_s)
                now_s += 0.001
                self._schedule.failed(now_s)
            now_s += 0.05
        return now_s

    def most_in_a_minute(self) -> int:
        return max(
            sum(start_s <= one <= start_s + 60 for one in self.dials_s) for start_s in self.dials_s
        )


def always(_):
    return [(200, 0, False)]


def sometimes(dice):
    return [(dice.choice([0.1, 0.5, 5, 30]), dice.choice([0, 1, 9, 29, 31, 70]), False)
            for _ in range(40)]  # fmt: skip


def in_a_hurry(dice):
    return [(0.01, dice.choice([0, 0.05, 1, 31]), dice.random() < 0.8) for _ in range(500)]


def mixed(dice):
    return [
        (dice.choice([0.01, 0.3, 6]), dice.choice([0, 0.2, 3, 31]), dice.random() < 0.5)
        for _ in range(100)
    ]


@pytest.mark.parametrize("demand", [always, sometimes, in_a_hurry, mixed])
@pytest.mark.parametrize("uniform", [SHORTEST, LONGEST, None], ids=["short", "long", "random"])
def test_no_pattern_of_demand_costs_more_than_fifteen_dials_a_minute(demand, uniform):
    worst = {}
    for seed in range(5):
        outage = Outage(uniform or random.Random(seed).uniform, seed)
        outage.lasts(demand)
        worst[seed] = outage.most_in_a_minute()

    assert max(worst.values()) <= 15, worst


def test_who_comes_after_a_quiet_while_dials_at_once():
    outage = Outage(LONGEST, 0)

    outage.lasts(lambda _: [(5, 4, False), (0.02, 0, False)])

    assert outage.dials_s[-1] - outage.dials_s[-2] > 4


def test_an_outage_after_a_long_quiet_begins_with_dense_dials():
    outage = Outage(LONGEST, 0)

    outage.lasts(lambda _: [(60, 31, False), (4, 0, False)])

    assert sum(one > outage.dials_s[-1] - 4 for one in outage.dials_s) == 5
