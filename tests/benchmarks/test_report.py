"""The report says what the figures say."""

import pytest

from benchmarks.report import _scenario, judged, make_document, quiet_text, verdict
from benchmarks.rounds import BenchSettings, Measured
from benchmarks.run import Outcome
from benchmarks.scenario import SCENARIOS, Figures
from benchmarks.server import Target
from benchmarks.tables import notes, table_rows

TARGET = Target(url="redis://localhost", kind="redis", version="8.6.2", is_private=True)

MACHINE = {"cpu": "a fast one", "cores": 2, "python": "3.11.7", "load_average": (0.4, 0.2, 0.1)}


def figures(*rates: float) -> list[Figures]:
    return [
        Figures(
            jobs=1000, seconds=1000 / rate, cpu_seconds=0.01, version="1", loop="uvloop",
            began_s=0, concurrency=100, payload_digest="0", server_cpu_share=0.5,
        )
        for rate in rates
    ]  # fmt: skip


@pytest.fixture
def document() -> dict:
    scenario = SCENARIOS["consume-100"]
    measured = Measured(
        scenario,
        {"ours": figures(100, 50, 80), "limit": figures(200, 100, 100), "original": figures(10, 5, 16),
         "rq": figures(0.4, 0.2, 0.3), "taskiq": figures(1, 0.5, 0.8), "bullmq": figures(9, 9, 9)},
        {"original+uvloop": "could not be installed"},
    )  # fmt: skip
    outcome = Outcome(
        measured=[measured],
        waited=[],
        grown=[],
        missing={"celery": "no such package"},
        failed={"add": "ours left 3 jobs"},
        took_s=61,
    )
    return make_document(MACHINE, TARGET, BenchSettings(scenarios=[scenario], rounds=3), outcome)


def test_rates_are_medians_with_their_spread(document):
    ours = document["scenarios"][0]["sides"][0]

    assert ours["jobs_per_s"] == pytest.approx({"median": 80, "min": 50, "max": 100})
    assert ours["cpu_us_per_job"]["median"] == pytest.approx(10)


def test_ratios_are_paired_round_by_round(document):
    original = document["scenarios"][0]["sides"][2]

    assert original["ours_to_this"] == pytest.approx({"median": 10, "min": 5, "max": 10})


def test_bars_say_whether_they_were_met(document):
    verdicts = {bar["side"]: bar["verdict"] for bar in document["bars"]}

    # One round in three reached the limit's bar, none the original's; taskiq is the best other.
    assert verdicts == {"limit": "unclear", "original": "not met", "taskiq": "met"}
    assert "bar unclear: consume-100 is 50% (50% … 80%) of limit, wanted 75%" in notes(document)


@pytest.mark.parametrize(
    ("low", "high", "word"), [(5, 7, "not met"), (8, 9, "met"), (7, 9, "unclear")]
)
def test_a_bar_is_met_only_when_every_round_reaches_it(low, high, word):
    assert verdict({"min": low, "max": high}, 8) == word


def test_what_the_original_cannot_do_is_held_against_what_it_can(document):
    scenario = SCENARIOS["consume-100-history"]
    measured = Measured(scenario, {"ours": figures(200, 100, 320)}, {})
    rows = [*document["scenarios"], _scenario(measured)]

    (bar,) = [
        one
        for one in judged(rows)
        if one["scenario"] == scenario.name and one["side"] == "original"
    ]

    assert bar["found"]["median"] == pytest.approx(20)
    assert (bar["of"], bar["verdict"]) == ("consume-100", "met")


def test_a_quiet_machine_is_only_described(document):
    assert "load average before the run: 0.4 on 2 cores" in notes(document)


@pytest.mark.parametrize(("load", "is_warned"), [(1.5, False), (1.6, True)])
def test_a_busy_machine_is_warned_about(load, is_warned):
    said = quiet_text(MACHINE | {"load_average": (load, 0, 0)})

    assert said.startswith("warning: ") is is_warned


def test_a_missing_peer_is_named_with_its_reason(document):
    assert "missing: celery: no such package" in notes(document)
    assert "not in consume-100: original+uvloop: could not be installed" in notes(document)


def test_what_failed_is_named_with_its_reason(document):
    assert "failed: add: ours left 3 jobs" in notes(document)


def test_the_time_of_the_run_is_told(document):
    assert notes(document)[-1] == "the run took 1 min 1 s"


def test_the_limit_is_a_share_and_a_peer_a_multiple(document):
    assert [row["ours to this"] for row in table_rows(document)][:3] == [
        "",
        "50% (50% … 80%)",
        "10.0x (5.0x … 10.0x)",
    ]
