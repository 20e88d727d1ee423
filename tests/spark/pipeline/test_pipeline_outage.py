"""A pipeline that runs waits for a server that went away, also while it loads, and goes on."""

from __future__ import annotations

import threading
from dataclasses import replace
from urllib.parse import urlsplit

import pytest

from chasquimq.errors import ConnectionLost, ServerRefused, StoreError
from chasquimq.settings import ConnectionSettings
from chasquimq.spark.pipeline.pipeline import Pipeline
from chasquimq.spark.pipeline.streaming import _ours
from support.history_feed import HistoryFeed
from support.waiting import eventually

pytestmark = pytest.mark.takes_turns


@pytest.mark.parametrize(
    ("kind", "sentence", "expected"),
    [
        ("ConnectionLost", "the connection broke", ConnectionLost),
        ("ServerUnreachable", "a server must answer", ConnectionLost),
        ("ServerRefused", "LOADING the dataset is in memory soon", ServerRefused),
        ("EntriesLost", "entries are gone", StoreError),
    ],
)
def test_what_an_executor_raised_keeps_its_kind(kind, sentence, expected):
    assert type(_ours(kind, sentence)) is expected


def test_what_the_server_says_keeps_its_code():
    assert _ours("ServerRefused", "LOADING the dataset is in memory soon").code == "LOADING"


@pytest.fixture
def durable_server(start_server, tmp_path):
    """Starts a server that keeps its data, on a port of its own; asked again, on the same."""
    return lambda port=0: start_server(port=port, aof="always", directory=tmp_path / "data")


@pytest.mark.timeout(360)
async def test_a_pipeline_goes_on_after_its_server_was_away_and_ends_while_it_is(
    durable_server, spark, settings, queue_name, caplog
):
    stop, reports, runs = threading.Event(), [], []
    first = durable_server()
    url = first.url
    feed = HistoryFeed(url, queue_name)
    feed.attempts(30)
    own = replace(settings, connection=ConnectionSettings(url=url))

    def follow() -> None:
        runs.append(Pipeline(spark, own).run(stop, reports.append))

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        await eventually(lambda: sum(one.rows for one in reports) == 30, within_s=120)
        feed.close()
        first.stop()
        await eventually(lambda: "the pipeline waits" in caplog.text, within_s=60)
        second = durable_server(urlsplit(url).port)
        feed.attempts(20)
        await eventually(lambda: sum(one.rows for one in reports) == 50, within_s=60)
        feed.close()
        second.stop()
        caplog.clear()
        await eventually(lambda: "the pipeline waits" in caplog.text, within_s=60)
    finally:
        stop.set()
        thread.join(60)
        feed.close()

    assert not thread.is_alive()
    assert [run.rows for run in runs] == [50]
    assert "the last audit is left out" in caplog.text
