"""Names become parts of a run, and an unknown one is refused with those that are known."""

from pathlib import Path

import pytest

from benchmarks.run import GROWTH, PEER_NAMES, SCENARIO_NAMES, choose
from benchmarks.scenario import SCENARIOS, WHATS
from chasquimq.errors import SettingsError


def test_without_names_everything_is_measured_beside_everyone():
    choice = choose([], [])

    assert [one.name for one in choice.bench.scenarios] == list(SCENARIOS)
    assert {peer.side for peer in choice.bench.peers} | {"none"} == set(PEER_NAMES)
    assert choice.bench.rounds == 5
    assert choice.latency.shares == (0.1, 0.5, 0.9)
    assert list(choice.growth.dimensions) == list(GROWTH.values())
    assert list(choice.growth.sizes) == [10_000, 100_000, 1_000_000]


def test_a_quick_run_leaves_out_what_takes_long():
    choice = choose([], [], is_quick=True)

    assert 0 < len(choice.bench.scenarios) < len(SCENARIOS)
    assert [one.name for one in choice.bench.scenarios if one.has_peers] == ["consume-100"]
    assert choice.growth is None


def test_what_is_named_is_measured_even_quickly():
    choice = choose(["growth-leases", "add"], ["none"], is_quick=True)

    assert [one.name for one in choice.bench.scenarios] == ["add"]
    assert (choice.latency, list(choice.growth.dimensions)) == (None, ["leases"])
    assert choice.bench.peers == []


@pytest.mark.parametrize(
    ("scenarios", "peers", "said"),
    [
        (["ad"], [], "scenario must be one of add, .*, got 'ad'; did you mean add?"),
        ([], ["bull"], "peer must be one of original, .*, got 'bull'; did you mean bullmq?"),
        ([], ["x"], "got 'x'$"),
    ],
)
def test_an_unknown_name_is_refused_in_a_sentence(scenarios, peers, said):
    with pytest.raises(SettingsError, match=said):
        choose(scenarios, peers)


def test_the_page_says_of_each_what_the_program_says():
    page = (Path(__file__).parents[2] / "benchmarks/README.md").read_text()

    assert tuple(WHATS) == SCENARIO_NAMES
    assert [name for name, what in WHATS.items() if f"| `{name}` | {what} |" not in page] == []
