"""Rounds on every kind of server: each side does the whole work, and nobody's data is lost."""

import asyncio

import msgspec
import pytest

from chasquimq.bench import limit
from chasquimq.bench.ours import preload
from chasquimq.bench.rounds import Bench, BenchFailed, BenchSettings, sized
from chasquimq.bench.scenario import SCENARIOS, STREAM
from chasquimq.bench.tape import Tape
from chasquimq.bench.target import ask, open_target
from chasquimq.errors import StoreError

JOBS = 1_500


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
    settings = BenchSettings(scenarios=scenarios, rounds=1, with_original=False)
    with open_target(None, server.url, {}) as target:
        yield Bench(target, settings, {})


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

    acks = [limit._step(frame) for frame in tapes["consume"].frames]
    assert len(tapes["add"].frames) == JOBS / 50
    assert sum(ack.id_count for ack in acks if isinstance(ack, limit._Ack)) == JOBS
    assert tapes["consume"].connection_count == 2


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
