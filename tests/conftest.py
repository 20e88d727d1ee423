"""One session server per kind and test process; a fresh queue name per test."""

from __future__ import annotations

import gc
import os
import sys
import uuid
from contextlib import ExitStack
from functools import cache

import pytest
from hypothesis import HealthCheck, settings

from chasquimq import Queue
from chasquimq.server.launch import SessionServer
from support.raw import Raw
from support.scheduling import FewJvms, turn_of
from support.servers import ServerKind, knows, server_kinds
from support.turns import left_to_another_kind
from support.workers import Workers

_KINDS = server_kinds()
# An example is right or wrong, however busy the machine is.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


@pytest.fixture(scope="session")
def _shared_server():
    """Servers that tests of this process share: one of a kind for those that name the same use."""
    with ExitStack() as running:
        yield cache(lambda kind, _use: running.enter_context(kind.session()))


@pytest.fixture(params=_KINDS, ids=lambda kind: kind.label)
def kind(request) -> ServerKind:
    """Every kind of server, one after the other."""
    return request.param


@pytest.fixture
def start_server(kind):
    """Start servers of this kind for this test alone; all are gone when it ends."""
    with ExitStack() as running:
        yield lambda **options: running.enter_context(kind.session(**options))


@pytest.fixture
def server(request, kind, start_server, _shared_server) -> SessionServer:
    """The server of a test: one that all share, keeping apart by queue name, or what a mark says."""
    if own := request.node.get_closest_marker("own_server"):
        return start_server(**own.kwargs)
    is_of_file = request.node.get_closest_marker("file_server") is not None
    return _shared_server(kind, request.node.path if is_of_file else None)


@pytest.fixture
def url(server) -> str:
    return server.url


@pytest.fixture(autouse=True)
def _needed_command(request) -> None:
    """Leave a test out where its server is older than the command that it is about."""
    needs = request.node.get_closest_marker("needs")
    if needs and not knows(request.getfixturevalue("url"), *needs.args):
        pytest.skip(f"this server does not know {needs.args[0]}")


@pytest.fixture
def queue_name() -> str:
    return f"q-{uuid.uuid4().hex[:12]}"


@pytest.fixture
async def queue(url, queue_name):
    async with Queue(queue_name, redis_url=url) as queue:
        yield queue


@pytest.fixture
async def raw(url, queue_name):
    """A look at the server that owes nothing to the code under test."""
    raw = await Raw.open(url, queue_name)
    yield raw
    await raw.close()


@pytest.fixture
async def running_worker(url, queue_name):
    """Start workers of the test's queue; all are stopped when the test ends."""
    workers = Workers(queue_name, url)
    yield workers.start
    for running in workers.started:
        await running.stop()


def pytest_configure(config) -> None:
    """Several processes start thousands of others: each may keep what it compiled for the next."""
    if config.getoption("numprocesses", None):
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        sys.dont_write_bytecode = False


def pytest_collection_modifyitems(config, items) -> None:
    """Leave out what another kind of server has its turn with; begin with what takes longest."""
    left_out = left_to_another_kind(items)
    config.hook.pytest_deselected(items=left_out)
    kept = set(items) - set(left_out)
    items[:] = [item for item in items if item in kept]
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: turn_of(item.nodeid))


def pytest_collection_finish() -> None:
    """What was collected stays to the end; no look for garbage has to pass through it again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    return FewJvms(config, log)


def pytest_terminal_summary(terminalreporter) -> None:
    labels = ", ".join(kind.label for kind in _KINDS)
    terminalreporter.write_line(f"servers used: {labels}")
