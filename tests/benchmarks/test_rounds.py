"""Rounds on every kind of server: each side does the whole work, and nobody's data is lost."""

import asyncio
import os
import sys

import msgspec
import pytest

from benchmarks import limit
from benchmarks.child import BenchFailed, Side
from benchmarks.instruments import Tape
from benchmarks.peer import ORIGINALS
from benchmarks.rounds import Bench, BenchSettings, check_effect, sized, turns
from benchmarks.scenario import DELAYED, SCENARIOS, STREAM, Work
from benchmarks.server import ask, open_target, preload
from chasquimq.errors import StoreError

JOBS = 1_500
# Between them they ask for everything that a worker can be asked for.
BEYOND_RUNNING = ["consume-100-all", "consume-results", "delayed-end-to-end", "retry-throughput"]
pytestmark = [pytest.mark.own_server(port=0), pytest.mark.takes_turns]


@pytest.fixture
def bench(server):
    """Both kinds of work, as small as they can be."""
    scenarios = [
        sized(SCENARIOS[name], JOBS, is_quick=False) for name in ("add-bulk-50", "consume-100")
    ]
    with open_target(None, server.url, {}) as target:
        yield Bench(target, BenchSettings(scenarios=scenarios, rounds=1, peers=()), {})


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
        for scenario in bench.settings.scenarios
    }

    steps = list(limit._steps(tapes["consume"].frames))
    assert len(tapes["add"].frames) == JOBS / 50
    assert sum(len(step.slots) for step in steps if isinstance(step, limit._Write)) == JOBS
    assert sum(step.entry_count for step in steps if isinstance(step, limit._Read)) == JOBS
    assert tapes["consume"].connection_count == 2


def test_the_limit_can_do_whatever_ours_did(server, scenario):
    with open_target(None, server.url, {}) as target:
        bench = Bench(target, BenchSettings(scenarios=[scenario], rounds=1, peers=()), {})
        (measured,) = bench.run(lambda _step: None)

    assert {side: one[0].jobs for side, one in measured.figures.items()} == {
        "ours": JOBS,
        "limit": JOBS,
    }


@pytest.mark.slow
def test_the_original_does_the_same_work(server, scenario):
    settings = BenchSettings(scenarios=[scenario], rounds=1, peers=ORIGINALS[:1])
    with open_target(None, server.url, {}) as target:
        bench = Bench(target, settings, os.environ)
        if reason := bench.missing.get("original") or ORIGINALS[0].refusal(scenario):
            pytest.skip(reason)
        (measured,) = bench.run(lambda _step: None)

    assert measured.missing == {}
    assert measured.figures["original"][0].jobs == JOBS


def test_a_scenario_that_fails_is_named_and_the_run_goes_on(server):
    class BrokenBench(Bench):
        def own_side(self, name: str) -> Side:
            return Side(name, [sys.executable, "-c", "raise SystemExit('broken')"], "asyncio")

    scenarios = [sized(SCENARIOS[name], 10, is_quick=False) for name in ("add", "consume-100")]
    with open_target(None, server.url, {}) as target:
        bench = BrokenBench(target, BenchSettings(scenarios=scenarios, peers=()), {})
        measured = bench.run(lambda _step: None)

    assert measured == []
    assert bench.failed == {
        one.name: "ours must give figures and ended with: broken" for one in scenarios
    }


def test_each_round_begins_with_the_next_side():
    assert [turns("abc", number) for number in range(4)] == [
        ["a", "b", "c"],
        ["b", "c", "a"],
        ["c", "a", "b"],
        ["a", "b", "c"],
    ]


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
        check(bench, scenario, 3)


def test_jobs_that_were_never_promoted_do_not_count(bench, server):
    scenario = SCENARIOS["delayed-end-to-end"]
    asyncio.run(preload(server.url, 3, Work(delay_ms=1)))

    with pytest.raises(BenchFailed, match="ours left 3 jobs in the queue"):
        check(bench, scenario, 3)

    assert ask(server.url, "ZCARD", DELAYED) == 3


def test_a_side_that_leaves_jobs_behind_does_not_count(bench):
    scenario = bench.settings.scenarios[1]
    asyncio.run(preload(bench.target.url, 3))

    with pytest.raises(BenchFailed, match="ours left 3 jobs in the queue"):
        check(bench, scenario, JOBS)


def test_a_server_that_holds_keys_is_left_alone(server):
    asyncio.run(preload(server.url, 3))

    with pytest.raises(StoreError, match="must hold no keys"), open_target(None, server.url, {}):
        pass

    assert ask(server.url, "XLEN", STREAM) == 3


def record(bench: Bench, scenario, path: str) -> Tape:
    plan = msgspec.structs.replace(bench.plan(scenario, path), is_recording=True)
    bench.once(bench.sides(scenario)[0], plan)
    return Tape.load(path)


def check(bench: Bench, scenario, jobs: int) -> None:
    check_effect(bench.target.url, bench.sides(scenario)[0], bench.plan(scenario, ""), jobs)
