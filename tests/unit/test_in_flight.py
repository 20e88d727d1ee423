"""How much a worker reads: never more than it may hold, and half of that at a time."""

from __future__ import annotations

import pytest

from chasquimq.engine.in_flight import InFlight
from chasquimq.model.delivery import Delivery
from chasquimq.settings import ReadSettings


def delivery(at: int) -> Delivery:
    return Delivery(b"1-%d" % at, f"job-{at}", "n", b"", 0, 0, 0, None, None, None, b"")


@pytest.fixture
def holding():
    """Holdings with so many waiting and running, of a worker that has just begun."""

    def make(concurrency: int, *, waiting: int = 0, running: int = 0, **read) -> InFlight:
        in_flight = InFlight(concurrency, ReadSettings(**read), lambda _: 25)
        in_flight.admit([delivery(at) for at in range(waiting)])
        in_flight.running_count = running
        return in_flight

    return make


def test_an_idle_worker_reads_half_of_what_it_may_hold(holding):
    assert holding(100).room() == 50


def test_the_other_half_is_read_while_the_first_one_waits(holding):
    assert holding(100, waiting=50).room() == 50


@pytest.mark.parametrize(("running", "room"), [(100, 1), (99, 2), (60, 41), (101, 0)])
def test_every_free_place_is_worth_a_read(holding, running, room):
    assert holding(100, running=running).room() == room


@pytest.mark.parametrize("concurrency", [1, 2, 10])
def test_a_small_worker_reads_all_it_may_hold_at_once(holding, concurrency):
    assert holding(concurrency).room() == concurrency + 1


def test_what_is_held_is_what_may_be(holding):
    in_flight = holding(100)

    held = 0
    while room := in_flight.room():
        in_flight.admit([delivery(at) for at in range(held, held + room)])
        held += room

    assert held == 101


def test_suspects_take_no_room_and_go_back_with_the_rest(holding):
    in_flight = holding(100)
    suspect, plain = delivery(1), delivery(2)
    suspect.earlier = 1

    in_flight.admit([suspect, plain], are_plain=False)

    assert (list(in_flight.waiting), list(in_flight.suspects.waiting)) == ([plain], [suspect])
    assert (in_flight.waiting_count, in_flight.unconfirmed_count) == (2, 0)
    assert in_flight.room() == holding(100, waiting=1).room()
    assert in_flight.take_all() == [plain, suspect]


def test_what_ran_elsewhere_while_it_waited_becomes_a_suspect_and_is_uncharged(holding):
    in_flight = holding(100, waiting=2)
    first, second = in_flight.waiting
    first.earlier = 1

    in_flight.suspect([first, second])

    assert (list(in_flight.waiting), list(in_flight.suspects.waiting)) == ([second], [first])
    assert (first.is_charged, second.is_charged) == (False, True)


def test_an_explicit_count_is_read_in_halves_too(holding):
    assert holding(10, count=400).room() == 200
    assert holding(10, count=400, waiting=201).room() == 199
