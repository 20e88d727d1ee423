"""Growth and latency on every kind of server, as small as they can be."""

import pytest

from benchmarks.growth import DIMENSIONS, Growth, GrowthSettings, growth_part, growth_rows
from benchmarks.latency import Latency, LatencySettings, latency_part, latency_rows
from benchmarks.rounds import Bench, BenchSettings
from benchmarks.server import open_target

JOBS = 600
SMALLEST = GrowthSettings(
    sizes=(JOBS,), payloads_bytes=(1_024,), processes=(2,), leases_ms=(0,), rounds=1, jobs_max=JOBS
)
pytestmark = pytest.mark.takes_turns


@pytest.fixture(scope="module")
def benches():
    """One server per kind for the whole file."""
    opened = {}
    yield opened
    for context, _ in opened.values():
        context.__exit__(None, None, None)


@pytest.fixture
def bench(kind, benches) -> Bench:
    if kind not in benches:
        context = open_target(kind.binary, None, {})
        target = context.__enter__()
        benches[kind] = context, Bench(target, BenchSettings(scenarios=[], peers=()), {})
    return benches[kind][1]


def test_every_dimension_runs_all_of_its_jobs(bench):
    growth, steps = Growth(bench, SMALLEST), []

    grown = growth.run(steps.append)

    assert len(steps) == growth.step_count() == len(DIMENSIONS)
    assert {one.dimension: one.figures.jobs for one in grown} == dict.fromkeys(DIMENSIONS, JOBS)
    rows = growth_part(grown)
    weighed = {row["dimension"] for row in rows if row["memory_bytes_per_job"]}
    assert weighed == {"backlog", "delayed", "payload"}
    assert len(growth_rows({"growth": rows})) == len(DIMENSIONS)


def test_waits_are_told_for_a_share_of_a_capacity_of_the_same_run(bench):
    latency, steps = Latency(bench, LatencySettings(rounds=1, seconds=0.3, shares=(0.1,))), []

    capacity, loaded = latency.run(steps.append)

    assert len(steps) == latency.step_count() == 2
    assert loaded.wanted_per_s == pytest.approx(capacity.arrived_per_s * 0.1)
    assert 0 < loaded.wait_ms["p50"] <= loaded.wait_ms["p99"] <= loaded.wait_ms["max"]
    (row,) = latency_rows({"latency": latency_part([capacity, loaded])})
    assert (row["load"], row["side"]) == ("10% of its own", "ours")
