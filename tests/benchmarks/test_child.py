"""What a measuring process says is heard, checked and, when there are several, added up."""

import json
import sys

import msgspec
import pytest

from benchmarks.child import BenchFailed, Side, measure
from benchmarks.peer import PEERS
from benchmarks.peers.measuring import digest
from benchmarks.scenario import Plan

PLAN = Plan(act="consume", jobs=10, url="redis://nowhere", loop="uvloop", wait_s=20)
# A peer as small as the protocol allows: it takes the plan and answers one line.
PROGRAM = """
import json, sys, time
sys.path.append({folder!r})
from measuring import digest
plan = json.loads(sys.argv[1])
if plan["processes"] > 1:
    print("ready", flush=True)
    sys.stdin.readline()
answer = dict(
    jobs=plan["jobs"], seconds=2.0, cpu_seconds=0.5, version="1", loop=plan["loop"],
    began_s=time.perf_counter(), concurrency=plan["concurrency"],
    payload_digest=digest(plan["payload"]),
)
print("a package may chat")
print(json.dumps(answer | {changes}))
"""


@pytest.fixture
def side(tmp_path):
    """Make a side that answers as the protocol says, but for the changes."""

    def make(peer=None, **changes) -> Side:
        program = tmp_path / "program.py"
        folder = digest.__code__.co_filename.rpartition("/")[0]
        program.write_text(PROGRAM.format(folder=folder, changes=changes))
        return Side("fake", [sys.executable, str(program)], "asyncio", peer)

    return make


def test_the_last_line_counts(side):
    figures = measure(side(), PLAN)

    assert (figures.jobs, figures.jobs_per_s, figures.cpu_us_per_job) == (10, 5.0, 50_000.0)


def test_a_side_is_told_its_own_loop(side):
    assert measure(side(), PLAN).loop == "asyncio"


def test_a_side_that_handled_another_payload_does_not_count(side):
    with pytest.raises(BenchFailed, match="fake must handle the payload of the plan"):
        measure(side(payload_digest=digest({"k0": "smaller"})), PLAN)


def test_a_side_with_another_concurrency_does_not_count(side):
    with pytest.raises(BenchFailed, match="fake must run 100 jobs at once, it ran 8"):
        measure(side(concurrency=8), PLAN)


def test_a_peer_that_can_do_no_more_is_taken_at_its_word(side):
    assert measure(side(PEERS["rq"], concurrency=1), PLAN).concurrency == 1


def test_processes_begin_together_and_are_added_up(side):
    figures = measure(side(), msgspec.structs.replace(PLAN, processes=2))

    assert (figures.jobs, figures.cpu_seconds) == (20, 1.0)
    assert figures.seconds >= 2.0


def test_a_side_that_is_stuck_is_ended_and_named():
    sleeper = Side("stuck", [sys.executable, "-c", "import time; time.sleep(30)"], "asyncio")

    with pytest.raises(BenchFailed, match="stuck must give figures within 1 s and did not"):
        measure(sleeper, msgspec.structs.replace(PLAN, wait_s=1))


@pytest.mark.parametrize("processes", [1, 2])
def test_a_side_that_dies_is_quoted(processes):
    dying = Side("dying", [sys.executable, "-c", "raise SystemExit('no such queue')"], "asyncio")

    with pytest.raises(BenchFailed, match="dying must give figures and ended with: no such queue"):
        measure(dying, msgspec.structs.replace(PLAN, processes=processes))


def test_the_plan_is_plain_json_for_every_language():
    plan = json.loads(msgspec.json.encode(PLAN))

    assert {"act", "jobs", "batch", "in_flight", "url", "concurrency", "payload"} <= plan.keys()
    assert {"delay_ms", "fails_once", "result"} <= plan["work"].keys()
