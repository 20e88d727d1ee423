"""Options of the Spark sources: what they mean, and how wrong ones are refused."""

from __future__ import annotations

import pickle
import re
from dataclasses import fields, replace
from pathlib import Path

import pytest

from chasquimq.errors import ChasquiError, SettingsError
from chasquimq.spark.offsets import Position
from chasquimq.spark.pipeline.settings import PipelineSettings
from chasquimq.spark.queues import options as queue_options
from chasquimq.spark.schema import ATTEMPTS_ARROW, EVENTS_ARROW
from chasquimq.spark.sources.options import OPTION_NAMES, SourceOptions, parse_options

PAGE = (Path(__file__).parents[3] / "docs/reference/spark-options.md").read_text()
ROW = re.compile(r"^\| `(?P<name>[\w.]+)` \| (?:`(?P<default>[^`]+)`)?", re.MULTILINE)


def parsed(**options: str) -> SourceOptions:
    return parse_options({"subscribe": "emails"} | options)


def refusal(**options: str) -> str:
    with pytest.raises(SettingsError) as refused:
        parsed(**options)
    return str(refused.value)


def test_a_queue_is_all_that_must_be_said():
    assert replace(parsed(), url=None) == SourceOptions(subscribe=("emails",))


@pytest.mark.parametrize(
    "read", [parse_options, queue_options.parse_options], ids=["sources", "queues"]
)
def test_without_a_url_the_server_is_looked_up_where_the_query_is_planned(read, monkeypatch):
    given = {"subscribe": "emails"} if read is parse_options else {"queue": "emails"}
    monkeypatch.setenv("CHASQUI_REDIS_URL", "redis://me:canary@planner:1")
    planned = pickle.dumps(read(given))

    monkeypatch.setenv("CHASQUI_REDIS_URL", "redis://executor:1")

    assert pickle.loads(planned).connection.url == "redis://me:canary@planner:1"
    assert "canary" not in repr(pickle.loads(planned))


@pytest.mark.parametrize(
    "read", [parse_options, queue_options.parse_options], ids=["sources", "queues"]
)
def test_a_variable_that_holds_no_url_is_refused_by_its_name(read, monkeypatch):
    given = {"subscribe": "emails"} if read is parse_options else {"queue": "emails"}
    monkeypatch.setenv("CHASQUI_REDIS_URL", "ftp://me:canary@host")

    with pytest.raises(SettingsError, match=r"^CHASQUI_REDIS_URL must be") as refused:
        read(given)

    assert "canary" not in str(refused.value)


def test_a_pipeline_knows_its_server_before_anything_travels(monkeypatch):
    monkeypatch.setenv("CHASQUI_REDIS_URL", "redis://planner:1")
    settings = PipelineSettings()
    monkeypatch.setenv("CHASQUI_REDIS_URL", "redis://executor:1")

    assert settings.connection.url == "redis://planner:1"


def test_every_option_has_its_place():
    assert len(OPTION_NAMES) == len(fields(SourceOptions))


def test_the_page_lists_every_option_with_its_default():
    told = {
        row["name"]: row["default"] for row in ROW.finditer(PAGE) if row["name"] in OPTION_NAMES
    }
    defaults = {name: text for name, text in told.items() if text}

    assert tuple(told) == OPTION_NAMES
    assert parsed(**defaults) == parsed()


@pytest.mark.parametrize("column", [*ATTEMPTS_ARROW.names, *EVENTS_ARROW.names])
def test_the_page_names_every_column(column):
    assert f"`{column}`" in PAGE


def test_names_are_taken_in_any_case_as_spark_hands_them_over():
    assert parsed(failondataloss="FALSE").fail_on_data_loss is False


def test_several_queues_stand_between_commas():
    assert parsed(subscribe="emails, sms,emails").subscribe == ("emails", "sms")


def test_a_pattern_stands_instead_of_names():
    options = parse_options({"subscribePattern": "mail-*"})

    assert (options.subscribe, options.subscribe_pattern) == ((), "mail-*")


def test_places_may_be_ids_counts_and_edges_by_queue():
    text = '{"emails": "5-0", "sms": "6-0@9", "push": "latest"}'

    options = parsed(subscribe="emails,sms,push", startingOffsets=text)

    assert options.starting_offsets == {
        "emails": Position("5-0"),
        "sms": Position("6-0", 9),
        "push": "latest",
    }


@pytest.mark.parametrize(
    "text", ["1800000000000", "2027-01-15T08:00:00Z", "2027-01-15T10:00+02:00"]
)
def test_a_time_is_milliseconds_or_a_date_with_its_zone(text):
    assert parsed(startingTimestamp=text).starting_timestamp_ms == 1_800_000_000_000


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("subscribe", " , ", "one or more queue names"),
        ("subscribe", "a b", "free of white space"),
        ("startingOffsets", "soon", "earliest, latest, or JSON"),
        ("startingOffsets", "[]", "earliest, latest, or JSON"),
        ("startingOffsets", '{"emails": 5}', "an entry id"),
        ("endingOffsets", '{"emails": "x"}', "an entry id"),
        ("startingTimestamp", "yesterday", "milliseconds since 1970"),
        ("startingTimestamp", "2027-01-15T08:00:00", "add Z for UTC"),
        ("startingTimestamp", "1960-01-15T08:00:00Z", "in 1970 or later"),
        ("startingOffsets", '{"emails": "18446744073709551616-0"}', "18446744073709551615 at most"),
        ("startingTimestamp", "9" * 16, "milliseconds since 1970"),
        ("maxOffsetsPerTrigger", "0", "from 1 to"),
        ("maxOffsetsPerTrigger", "many", "a whole number"),
        ("minPartitions", "-1", "a whole number"),
        ("minPartitions", str(2**31), "from 1 to"),
        ("fetchSize", "1.5", "a whole number"),
        ("failOnDataLoss", "no", "true or false"),
        ("includeExtra", "1", "true or false"),
        ("filterPushdown", "", "true or false"),
        ("discoverEveryMs", "-5", "a whole number"),
    ],
)
def test_a_wrong_value_is_refused_with_its_rule(name, text, words):
    message = refusal(**{name: text})

    assert words in message
    assert name in message or "queue name" in message


def test_a_pattern_that_breaks_out_of_its_key_is_refused():
    with pytest.raises(SettingsError, match="subscribePattern must be a glob"):
        parse_options({"subscribePattern": "a}:*"})


@pytest.mark.parametrize("options", [{}, {"subscribe": "emails", "subscribePattern": "*"}])
def test_one_way_to_name_queues_must_be_given(options):
    with pytest.raises(SettingsError, match="one of the two"):
        parse_options(options)


def test_an_offset_of_a_queue_that_is_not_read_is_refused():
    assert "about queues that subscribe names" in refusal(startingOffsets='{"sms": "5-0"}')


def test_two_beginnings_are_refused():
    message = refusal(startingOffsets='{"emails": "5-0"}', startingTimestamp="5")

    assert "without startingOffsets" in message


def test_a_misspelled_option_is_refused_with_what_was_meant():
    assert "did you mean failOnDataLoss?" in refusal(failOnDataLos="false")


def test_an_option_that_only_another_source_has_is_refused():
    with pytest.raises(SettingsError, match="one that this source knows"):
        parse_options({"subscribe": "emails", "includeExtra": "true"}, without=("includeExtra",))


def test_a_broken_address_is_refused_without_its_password():
    with pytest.raises(ChasquiError) as refused:
        parse_options({"subscribe": "emails", "chasqui.redis.url": "http://me:secret@host"})

    assert "secret" not in str(refused.value)


def test_options_travel_to_executors_and_never_show_the_password():
    options = parse_options({"subscribe": "emails", "chasqui.redis.url": "redis://:secret@host"})

    assert pickle.loads(pickle.dumps(options)) == options
    assert "secret" not in repr(options)
