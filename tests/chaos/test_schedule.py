"""A seed is a schedule: the same one each time, and another one for another seed."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from chaos.schedule import CUTS, KINDS, schedule

ROOT = Path(__file__).parents[2]
WHOLE = {"seconds": 600.0, "acts_max": 10_000, "kinds": KINDS, "workers": 3, "lease_s": 1.0}


def test_a_seed_gives_the_same_faults_each_time():
    assert schedule(7, **WHOLE) == schedule(7, **WHOLE)
    assert schedule(7, **WHOLE) != schedule(8, **WHOLE)


def test_a_schedule_has_every_kind_of_fault_and_every_kind_of_cut_within_its_bounds():
    acts = schedule(7, **WHOLE)

    assert {act.kind for act in acts} == set(KINDS)
    assert {act.how for act in acts if act.kind == "cut"} == set(CUTS)
    assert {act.target for act in acts} == {0, 1, 2}
    assert max(act.at_s for act in acts) <= 600
    assert all(now.at_s + now.lasts_s <= then.at_s for now, then in itertools.pairwise(acts))
    assert len(schedule(7, **WHOLE | {"acts_max": 5})) == 5


def test_only_the_faults_that_were_asked_for_happen():
    assert {act.kind for act in schedule(7, **WHOLE | {"kinds": ("kill", "oom")})} == {
        "kill",
        "oom",
    }


@pytest.mark.timeout(240)
def test_a_short_chaos_prints_its_schedule_and_passes():
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos", "--seed", "3", "--minutes", "0.1", "--jobs", "300"],
        cwd=ROOT, text=True, capture_output=True, timeout=110, check=False,
        env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
    )  # fmt: skip

    expected = schedule(3, **WHOLE | {"seconds": 6.0})
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(str(act) in done.stdout for act in expected)
    assert done.stdout.splitlines()[-1].startswith("PASS seed 3: jobs 3")


def test_an_unknown_fault_is_refused_by_name():
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos", "--faults", "kill,flood"],
        cwd=ROOT, text=True, capture_output=True, timeout=50, check=False,
    )  # fmt: skip

    assert done.returncode == 2
    assert "flood; choose from kill, stop" in done.stderr
