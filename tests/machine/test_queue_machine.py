"""Whatever producers, workers and operators do, in any order: no job is lost and none ends twice."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from machine.queue_machine import QueueMachine

# The long form looks for new histories each time; the short one repeats the same.
IS_BIG = os.environ.get("CHASQUI_TEST_BIG") == "1"
EXAMPLES, STEPS = (20_000, 80) if IS_BIG else (40, 40)
# The embedded server is everywhere; on the others a shorter look is enough.
OTHERS = 1.0 if IS_BIG else 0.6
RUN_S_MAX = 24 * 3600 if IS_BIG else 600


@pytest.mark.timeout(RUN_S_MAX)
@pytest.mark.own_server
def test_every_job_comes_to_exactly_one_end(kind, url):
    share = 1.0 if kind.binary is None else OTHERS
    profile = settings(
        max_examples=int(EXAMPLES * share), stateful_step_count=STEPS, derandomize=not IS_BIG, deadline=None,
        database=None, suppress_health_check=list(HealthCheck), print_blob=True,
    )  # fmt: skip

    run_state_machine_as_test(lambda: QueueMachine(url), settings=profile)
