"""Histories to read, and one Spark session for all tests that need one."""

from __future__ import annotations

import pytest

from chasquimq.spark.session import SessionSettings, open_session
from chasquimq.spark.sources.events import EventsSource
from chasquimq.spark.sources.history import HistorySource
from support.drive import Drive
from support.feed import Feed
from support.light_spark import lighten
from support.scheduling import SHARED_SESSION, scope_of
from support.waiting import patience

# A session starts within half a minute on a busy machine, and its first query takes as long.
_SPARK_TIMEOUT_S = 240
_CONF = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.python.filterPushdown.enabled": "true",
}


def pytest_configure(config) -> None:
    lighten(config.cache.mkdir("light_spark"))


def pytest_collection_modifyitems(items) -> None:
    """The first test with the session pays for its start, and all must meet in one process."""
    for item in items:
        if "spark" not in getattr(item, "fixturenames", ()):
            continue
        item.add_marker(pytest.mark.timeout(_SPARK_TIMEOUT_S * patience()))
        if scope_of(item.nodeid) != SHARED_SESSION:
            raise pytest.UsageError(f"{item.nodeid} needs a line in tests/support/scheduling.py")


@pytest.fixture(scope="session")
def spark():
    """One small session for the whole run."""
    session = open_session(SessionSettings(master="local[2]", memory_mb=768, conf=_CONF))
    yield session
    session.stop()


@pytest.fixture
def feeds(url):
    """Makes feeds of queues; closes them when the test ends."""
    made = []

    def make(queue: str) -> Feed:
        made.append(Feed(url, queue))
        return made[-1]

    yield make
    for feed in made:
        feed.close()


@pytest.fixture
def feed(feeds, queue_name) -> Feed:
    return feeds(queue_name)


@pytest.fixture
def options(url, queue_name) -> dict[str, str]:
    return {"chasqui.redis.url": url, "subscribe": queue_name}


@pytest.fixture
def history(options):
    """Starts a query of the history without Spark."""
    return lambda **more: Drive(HistorySource, options | more)


@pytest.fixture
def events(options):
    """Starts a query of the events without Spark."""
    return lambda **more: Drive(EventsSource, options | more)
