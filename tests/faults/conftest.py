"""Servers to be killed and workers to be killed, all gone when the test is."""

from __future__ import annotations

import pytest

from chasquimq import Queue
from support.processes import WorkerFleet
from support.raw import Raw
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


@pytest.fixture
def own_server(kind):
    """A server of this test alone, which writes every command to disk before it answers."""
    server = kind.session(aof="always").start()
    yield server
    server.stop()


@pytest.fixture
async def own_queue(own_server, queue_name):
    async with Queue(queue_name, redis_url=own_server.url) as queue:
        yield queue


@pytest.fixture
async def own_raw(own_server, queue_name):
    raw = await Raw.open(own_server.url, queue_name)
    yield raw
    await raw.close()


@pytest.fixture
def own_fleet(own_server, queue_name, tmp_path):
    fleet = WorkerFleet(own_server.url, queue_name, tmp_path)
    yield fleet
    fleet.close()


@pytest.fixture
def own_trial(own_queue, own_server, tmp_path):
    trial = Trial(own_queue, own_server.url, tmp_path)
    yield trial
    trial.close()
