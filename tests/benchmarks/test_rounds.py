"""Rounds on every kind of server: each side does the whole work, and nobody's data is lost."""

import asyncio
import os
import sys

import msgspec
import pytest

from chasquimq.bench import limit
from chasquimq.bench.ours import preload
from chasquimq.bench.peer import ORIGINALS
from chasquimq.bench.rounds import Bench, BenchFailed, BenchSettings, Side, _run, _turns, sized
from chasquimq.bench.scenario import DELAYED, RUN_ONCE, SCENARIOS, STREAM, Work
from chasquimq.bench.tape import Tape
from chasquimq.bench.target import ask, open_target
from chasquimq.errors import StoreError

JOBS = 1_500
BEYOND_RUNNING = [name for name, one in SCENARIOS.items() if one.work != RUN_ONCE]


@pytest.fixture
def server(kind):
    with kind.session(port=0) as session:
        yield session


@pytest.fixture
def bench(server):
    """Both kinds of work, as small as they can be."""
    scenarios = [
        sized(SCENARIOS[name], JOBS, is_quick=False) for name in ("add-bulk-50", "consume-100")
    ]
    with open_target(None, server.url, {}) as target:
        yield Bench(target, BenchSettings(scenarios=scenarios, rounds=1, originals=()), {})


@pytest.fixture(params=BEYOND_RUNNING)
def scenario(request):
    """Everything that asks more of a worker than to run each job once."""
    return sized(SCENARIOS[request.param], JOBS, is_quick=False)


def test_ours_and_the_limit_take_turns_in_every_scenario(bench):
    steps = []

    measured = bench.run(steps.append)

    assert len(steps) == bench.step_count() == 6
    assert [list(one.figures) for one in measured] == [["ours", "limit"]] * 2


def test_the_tape_holds_every_add_and_every_ack_once(bench, tmp_path):
    tapes = {
        scenario.act: record(bench, scenario, str(tmp_path / scenario.act))
        for scenario in bench._settings.scenarios
    }

    steps = list(limit._steps(tapes["consume"].frames))
    assert len(tapes["add"].frames) == JOBS / 50
    assert sum(len(step.slots) for step in steps if isinstance(step, limit._Write)) == JOBS
    assert sum(step.entry_count for step in steps if isinstance(step, limit._Read)) == JOBS
    assert tapes["consume"].connection_count == 2


def test_the_limit_can_do_whatever_ours_did(server, scenario):
    with open_target(None, server.url, {}) as target:
        bench = Bench(target, BenchSettings(scenarios=[scenario], rounds=1, originals=()), {})
        (measured,) = bench.run(lambda _step: None)

    assert {side: one[0].jobs for side, one in measured.figures.items()} == {
        "ours": JOBS,
        "limit": JOBS,
    }


@pytest.mark.slow
def test_the_original_does_the_same_work(server, scenario):
    settings = BenchSettings(scenarios=[scenario], rounds=1, originals=ORIGINALS[:1])
    with open_target(None, server.url, {}) as target:
        bench = Bench(target, settings, os.environ)
        if bench._missing:
            pytest.skip(bench._missing["original"])
        (measured,) = bench.run(lambda _step: None)

    assert measured.missing == {}
    assert measured.figures["original"][0].jobs == JOBS


def test_each_round_begins_with_the_next_side():
    assert [_turns("abc", number) for number in range(4)] == [
        ["a", "b", "c"],
        ["b", "c", "a"],
        ["c", "a", "b"],
        ["a", "b", "c"],
    ]


def test_a_side_that_is_stuck_is_ended_and_named(bench):
    sleeper = Side("stuck", [sys.executable, "-c", "import time; time.sleep(30)"], "asyncio")
    plan = msgspec.structs.replace(bench._plan(bench._settings.scenarios[0], ""), wait_s=1)

    with pytest.raises(BenchFailed, match="stuck must give figures within 1 s and did not"):
        _run(sleeper, plan)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("consume-results", "must keep 3 results"),
        ("consume-100-events", "events"),
        ("consume-100-history", "must keep a history"),
    ],
)
def test_a_side_that_leaves_out_a_part_of_the_work_does_not_count(bench, name, said):
    scenario = SCENARIOS[name]

    with pytest.raises(BenchFailed, match=said):
        bench._check_effect(bench._sides(scenario)[0], bench._plan(scenario, ""), 3)


def test_jobs_that_were_never_promoted_do_not_count(bench, server):
    scenario = SCENARIOS["delayed-end-to-end"]
    asyncio.run(preload(server.url, 3, Work(delay_ms=1)))

    with pytest.raises(BenchFailed, match="ours left 3 jobs in the queue"):
        bench._check_effect(bench._sides(scenario)[0], bench._plan(scenario, ""), 3)

    assert ask(server.url, "ZCARD", DELAYED) == 3


def test_a_side_that_leaves_jobs_behind_does_not_count(bench):
    scenario = bench._settings.scenarios[1]
    plan = bench._plan(scenario, "")
    asyncio.run(preload(plan.url, 3))

    with pytest.raises(BenchFailed, match="ours left 3 jobs in the queue"):
        bench._check_effect(bench._sides(scenario)[0], plan, JOBS)


def test_a_server_that_holds_keys_is_left_alone(server):
    asyncio.run(preload(server.url, 3))

    with pytest.raises(StoreError, match="must hold no keys"), open_target(None, server.url, {}):
        pass

    assert ask(server.url, "XLEN", STREAM) == 3


def record(bench: Bench, scenario, path: str) -> Tape:
    plan = msgspec.structs.replace(bench._plan(scenario, path), is_recording=True)
    bench._once(bench._sides(scenario)[0], plan)
    return Tape.load(path)
