"""Nobody is favoured: payload, concurrency, processes and server are the same for all sides."""

import msgspec
import pytest

from benchmarks.child import Side
from benchmarks.peer import PEERS
from benchmarks.rounds import Bench, BenchSettings
from benchmarks.scenario import SCENARIOS, payload_of
from benchmarks.server import Target, ask, open_target

TARGET = Target(url="redis://localhost", kind="redis", version="8.6.2", is_private=True)
# A slow package gets fewer jobs, and each runs on the loop that makes it fast.
MAY_DIFFER = {"jobs", "loop"}


@pytest.fixture(params=SCENARIOS.values(), ids=SCENARIOS)
def scenario(request):
    return request.param


@pytest.fixture
def bench():
    """Every peer takes part, without being installed."""
    bench = Bench(TARGET, BenchSettings(scenarios=[], peers=()), {})
    bench.peers = [Side(peer.side, [], peer.loop, peer) for peer in PEERS.values()]
    return bench


def test_every_side_is_told_the_same(bench, scenario):
    plan = bench.plan(scenario, "tape")

    told = [
        msgspec.to_builtins(bench._plan_of(side, scenario, plan)) for side in bench.sides(scenario)
    ]

    same = [{name: one[name] for name in one.keys() - MAY_DIFFER} for one in told]
    assert same == [same[0]] * len(same)
    assert same[0]["payload"] == payload_of(scenario.payload_bytes)
    assert (same[0]["concurrency"], same[0]["processes"], same[0]["url"]) == (100, 1, TARGET.url)


def test_who_cannot_run_as_many_jobs_at_once_says_so():
    fewer = {side: peer.note for side, peer in PEERS.items() if peer.concurrency != 100}

    assert list(fewer) == ["rq"]
    assert "one job at a time" in fewer["rq"]


def test_no_peer_gets_more_jobs_than_ours(scenario):
    assert all(one.jobs_of(scenario, scenario.jobs) <= scenario.jobs for one in PEERS.values())


@pytest.mark.parametrize("wanted_bytes", [1_024, 65_536])
def test_a_payload_has_the_size_of_its_name(wanted_bytes):
    assert len(msgspec.msgpack.encode(payload_of(wanted_bytes))) == wanted_bytes


@pytest.mark.parametrize(("aof", "appendonly"), [("no", "no"), ("everysec", "yes")])
def test_the_server_keeps_nothing_on_disk_unless_asked_to(kind, aof, appendonly):
    with open_target(kind.binary, None, {}, aof) as target:
        found = {name: ask(target.url, "CONFIG", "GET", name) for name in ("save", "appendonly")}

    assert found["save"] in ([b"save", b""], {b"save": b""})
    assert appendonly.encode() in (*found["appendonly"], *_values(found["appendonly"]))


def _values(reply) -> list[bytes]:
    return list(reply.values()) if isinstance(reply, dict) else []
