"""Histories to read, and one Spark session for all tests that need one."""

from __future__ import annotations

import pytest

from chasquimq.spark.events import EventsSource
from chasquimq.spark.history import HistorySource
from support.drive import Drive
from support.feed import Feed


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
