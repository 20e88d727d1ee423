"""A pipeline from one queue into one lake, and questions to its tables."""

from __future__ import annotations

import os
import zlib
from dataclasses import replace

import pytest

from chasquimq.settings import ConnectionSettings
from chasquimq.spark.answers import Answers
from chasquimq.spark.pipeline import Pipeline
from chasquimq.spark.pipeline_settings import PipelineSettings
from support.history_feed import HistoryFeed
from support.servers import server_kinds

IS_BIG = os.environ.get("CHASQUI_TEST_BIG") == "1"
_KINDS = server_kinds()
# Where what the server does is the point; what it answers to a reader is asked without Spark.
_ON_EVERY_KIND = ("test_pipeline_losses", "test_pipeline_outage", "test_pipeline_workers")


def pytest_collection_modifyitems(config, items) -> None:
    """A batch is dear, and is between a pipeline and its lake: the kinds of servers take turns."""
    left_out = [] if IS_BIG else [item for item in items if _is_left_to_another_kind(item)]
    config.hook.pytest_deselected(items=left_out)
    kept = set(items) - set(left_out)
    items[:] = [item for item in items if item in kept]


def _is_left_to_another_kind(item) -> bool:
    is_ours = item.nodeid.startswith("tests/spark/pipeline/")
    if not is_ours or item.path.stem in _ON_EVERY_KIND or "pipeline" not in item.fixturenames:
        return False
    turn = zlib.crc32(item.originalname.encode()) % len(_KINDS)
    return item.callspec.params["kind"] != _KINDS[turn]


@pytest.fixture
def feed(url, queue_name):
    feed = HistoryFeed(url, queue_name)
    yield feed
    feed.close()


@pytest.fixture
def settings(url, queue_name, tmp_path) -> PipelineSettings:
    return PipelineSettings(
        lake=tmp_path / "lake",
        queues=(queue_name,),
        connection=ConnectionSettings(url=url),
        slo={"mail": 1_000},
    )


@pytest.fixture
def pipeline(spark, settings):
    """Makes pipelines into the lake of the test; settings given by name differ."""
    return lambda **changed: Pipeline(spark, replace(settings, **changed))


@pytest.fixture
def ask(settings):
    """Rows of the tables, as their readers see them."""

    def asked(question: str) -> list[dict]:
        with Answers(settings.lake) as answers:
            return answers.sql(question).dicts()

    return asked


@pytest.fixture
def counts(ask):
    """How many rows each table has, and what gold adds them up to."""
    gold = "sum(completed)::int as completed, sum(retried)::int as retried, sum(dead)::int as dead"

    def counted() -> dict[str, int]:
        rows = {
            name: ask(f"select count(*) as n from {name}")[0]["n"]
            for name in ("bronze_attempts", "silver_attempts", "silver_jobs")
        }
        return rows | ask(f"select {gold} from gold_minute")[0]

    return counted
