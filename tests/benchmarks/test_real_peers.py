"""Every package does the work of every scenario it has a part in; installs them, so only on demand."""

import os

import pytest

from benchmarks.peer import OTHERS, PeerMissing
from benchmarks.rounds import Bench, BenchSettings, sized
from benchmarks.scenario import SCENARIOS
from benchmarks.server import open_target

IS_BIG = os.environ.get("CHASQUI_TEST_BIG") == "1"
JOBS = 200
WITH_PEERS = [name for name, one in SCENARIOS.items() if one.has_peers]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not IS_BIG, reason="installs other packages; CHASQUI_TEST_BIG=1 runs it"),
]


@pytest.mark.parametrize("peer", OTHERS, ids=lambda peer: peer.side)
@pytest.mark.parametrize("name", WITH_PEERS)
def test_a_peer_does_the_whole_work(kind, peer, name):
    scenario = sized(SCENARIOS[name], JOBS, is_quick=False)
    if reason := peer.refusal(scenario):
        pytest.skip(reason)
    with open_target(kind.binary, None, {}) as target:
        bench = Bench(target, BenchSettings(scenarios=[scenario], peers=[peer]), os.environ)
        if bench.missing:
            raise PeerMissing(bench.missing[peer.side])
        (side,) = bench.peers
        figures = bench.once(side, bench._plan_of(side, scenario, bench.plan(scenario, "")))

    assert figures.jobs == JOBS
    assert figures.version == peer.version
