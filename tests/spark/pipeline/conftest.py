"""A pipeline from one queue into one lake, and questions to its tables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chasquimq.settings import ConnectionSettings
from chasquimq.spark.pipeline.pipeline import Pipeline
from chasquimq.spark.pipeline.settings import PipelineSettings
from chasquimq.spark.query.queries import Answers
from support.history_feed import HistoryFeed


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
