"""Histories to read, and one Spark session for all tests that need one."""

from __future__ import annotations

import os
import sys

import pytest

from chasquimq.spark.events import EventsSource
from chasquimq.spark.history import HistorySource
from support.drive import Drive
from support.feed import Feed

# A session starts within half a minute on a busy machine, and its first query takes as long.
_SPARK_TIMEOUT_S = 240


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items) -> None:
    """All tests with a session run in one process, so that there is one JVM."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark"))
            item.add_marker(pytest.mark.timeout(_SPARK_TIMEOUT_S))


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    """One small session for the whole run."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    home = tmp_path_factory.mktemp("spark")
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.warehouse.dir", str(home / "warehouse"))
        .config("spark.sql.python.filterPushdown.enabled", "true")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
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
