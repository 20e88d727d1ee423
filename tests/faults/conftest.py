"""Servers to be killed and workers to be killed, all gone when the test is."""

from __future__ import annotations

import pytest

from support.processes import WorkerFleet
from support.trial import Trial


@pytest.fixture
def fleet(url, queue_name, tmp_path):
    """Worker processes on the shared server, with their journals in `tmp_path`."""
    fleet = WorkerFleet(url, queue_name, tmp_path)
    yield fleet
    fleet.close()


@pytest.fixture
def trial(queue, url, tmp_path):
    """Adds under a journal, and a verdict at the end."""
    trial = Trial(queue, url, tmp_path)
    yield trial
    trial.close()
