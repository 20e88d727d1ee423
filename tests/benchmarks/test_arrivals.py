"""Arrivals wait for nobody, so no stall hides the waits that it caused."""

import asyncio
import time

import pytest

from benchmarks.peers import arrivals

PLAN = {
    "arrivals_per_s": 500.0,
    "arrivals_s": 0.4,
    "in_flight": 3,
    "payload": {"k0": "v", "k1": "w"},
}


def test_the_schedule_is_the_same_each_time_and_has_its_rate():
    first = arrivals.schedule_ns(1_000, 2)

    assert first == arrivals.schedule_ns(1_000, 2)
    assert len(first) == pytest.approx(2_000, rel=0.1)
    assert list(first) == sorted(first)


async def test_no_arrival_waits_for_an_answer():
    begun, all_begun = [], asyncio.Event()
    wanted = len(arrivals.schedule_ns(PLAN["arrivals_per_s"], PLAN["arrivals_s"]))

    async def answer_when_all_have_begun(payload):
        if payload["k0"] == "v":
            return  # the one that connects
        begun.append(payload)
        if len(begun) == wanted:
            all_begun.set()
        await all_begun.wait()

    async with asyncio.timeout(20):
        answer = await arrivals.arrive(PLAN, answer_when_all_have_begun)

    assert answer["jobs"] == wanted


async def test_a_stall_is_part_of_the_wait_of_all_that_were_due_meanwhile():
    starts = arrivals.Starts()
    is_stalled = False

    async def add(payload):
        nonlocal is_stalled
        if payload["k0"] == "v":
            return
        if not is_stalled:
            is_stalled = True
            time.sleep(0.3)  # noqa: ASYNC251 - the stall
        starts.started(payload)

    await arrivals.arrive(PLAN, add)

    # Who waits for answers would see one slow job; here all that were due in 0.3 s are late.
    late = [wait for wait in starts._waits_ns if wait > 0.1e9]
    assert len(late) > 0.3 * len(starts._waits_ns)


async def test_the_fastest_that_answers_allow_is_measured_with_so_many_callers():
    running, most = 0, 0

    async def add(_payload):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1

    answer = await arrivals.arrive(PLAN | {"arrivals_per_s": 0}, add)

    assert most == PLAN["in_flight"]
    assert answer["jobs"] > PLAN["in_flight"]


def test_a_worker_says_that_it_is_there_by_a_job_without_a_moment(capsys):
    arrivals.Starts().started({"k0": "v0"})

    assert capsys.readouterr().out == "ready\n"


def test_ranks_are_those_of_the_sorted_waits():
    found = arrivals.spread_ms([number * 1_000_000 for number in range(1_001)])

    assert found == {"p50": 500, "p99": 990, "p99.9": 999, "max": 1_000}
