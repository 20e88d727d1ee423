"""The lane of redelivered jobs: whose turn it is, and who waits too long."""

from __future__ import annotations

import asyncio
import time

import pytest

from chasquimq.engine.delivery_count import PROVED_S, Suspects
from chasquimq.model.delivery import Delivery

SECOND_NS = 1_000_000_000


@pytest.fixture
def suspects() -> Suspects:
    return Suspects(lambda _: 3)


def suspect(at: int, *, earlier: int = 1, waited_s: float = 0.0) -> Delivery:
    one = Delivery(b"1-%d" % at, f"job-{at}", "n", b"", 0, 0, earlier, None, None, None, b"")
    one.held_since_ns = time.monotonic_ns() - int(waited_s * SECOND_NS)
    return one


def running(for_s: float) -> Delivery:
    one = suspect(99)
    one.started_ns = time.monotonic_ns() - int(for_s * SECOND_NS)
    return one


async def test_the_next_one_waits_until_the_end_of_the_first_is_confirmed(suspects):
    first, second = suspect(1), suspect(2)
    suspects.waiting.extend([first, second])

    assert suspects.start() is first
    first.is_finished = True
    assert not suspects.has_turn
    suspects.settled([second.entry_id])
    assert not suspects.has_turn
    suspects.settled([first.entry_id])
    assert suspects.has_turn


async def test_on_its_last_attempt_it_starts_beside_nothing_but_what_has_lasted(suspects):
    suspects.waiting.append(suspect(1, earlier=2))

    assert not suspects.may_start([running(PROVED_S - 1)])
    assert not suspects.may_start([running(PROVED_S + 1), running(0)])
    assert suspects.may_start([running(PROVED_S + 1)])
    assert suspects.may_start([])


async def test_before_its_last_attempt_it_starts_beside_anything(suspects):
    suspects.waiting.append(suspect(1, earlier=1))

    assert suspects.may_start([running(0)])


async def test_other_jobs_have_their_time_between_two_that_want_to_be_alone(suspects):
    first, second = suspect(1, earlier=2), suspect(2, earlier=2)
    suspects.waiting.extend([first, second])
    assert suspects.may_start([])
    suspects.start()
    await asyncio.sleep(0.2)

    suspects.settled([first.entry_id])

    assert not suspects.has_turn
    await asyncio.sleep(0.25)
    assert suspects.has_turn


async def test_a_charge_that_comes_amid_a_trial_makes_nobody_wait_longer(suspects):
    """What ran elsewhere meanwhile may leave the suspect no further attempt."""
    first, second = suspect(1, earlier=1), suspect(2, earlier=2)
    suspects.waiting.extend([first, second])
    suspects.start()
    first.earlier = 2

    suspects.settled([first.entry_id])

    assert suspects.has_turn


async def test_all_but_the_first_go_back_after_a_second_and_the_first_a_little_later(suspects):
    early, late = suspect(1, waited_s=2), suspect(2, waited_s=2)
    suspects.waiting.extend([early, late, suspect(3)])

    assert suspects.take_overdue() == [late]
    assert not suspects.may_claim
    early.held_since_ns -= 10 * SECOND_NS
    assert suspects.take_overdue() == [early]


async def test_one_that_the_worker_is_kept_free_for_does_not_go_back(suspects):
    suspects.waiting.append(suspect(1, earlier=2, waited_s=60))
    suspects.may_start([running(1)])

    assert suspects.take_overdue() == []


async def test_nothing_is_claimed_while_one_waits_or_is_on_trial(suspects):
    one = suspect(1)
    assert suspects.may_claim
    suspects.waiting.append(one)
    assert not suspects.may_claim
    suspects.start()
    assert not suspects.may_claim
    suspects.settled([one.entry_id])
    assert suspects.may_claim
