"""Worker processes that are gone when the test is."""

from __future__ import annotations

import pytest

from support.worker_processes import WorkerProcesses


@pytest.fixture
def workers(url, queue_name, tmp_path):
    processes = WorkerProcesses(url, queue_name, tmp_path)
    yield processes
    processes.close()
