"""Positions in a stream, and what was lost between two of them."""

from __future__ import annotations

import pytest

from chasquimq.errors import SettingsError
from chasquimq.spark.offsets import (
    Position,
    count_at_edge,
    first_position,
    from_json,
    is_inside,
    is_plausible,
    last_position,
    lost_between,
    parse_position,
    to_json,
    went_back,
)
from chasquimq.store.inspect.ranges import StreamFacts

# Ten entries were added, four of them are left.
FACTS = StreamFacts(length=4, first_id="7-0", last_id="10-0", added=10)
EMPTIED = StreamFacts(length=0, first_id="0-0", last_id="10-0", added=10)
UNCOUNTED = StreamFacts(length=4, first_id="7-0", last_id="10-0", added=None)


def test_offsets_come_back_from_a_checkpoint_as_they_were():
    offsets = {"emails": Position("5-3", 17), "sms": Position("0-0", None)}

    assert from_json(to_json(offsets)) == offsets


def test_offsets_are_ids_and_counts_as_text():
    assert to_json({"emails": Position("5-3", 17)}) == {"emails": "5-3@17"}


@pytest.mark.parametrize(
    "text", ["", "latest", "5", "5-", "-3", "5-3@", "5-3@x", "5-3@1@2", " 5-3"]
)
def test_what_is_no_position_is_refused_by_the_name_of_its_option(text):
    with pytest.raises(SettingsError, match="startingOffsets must be an entry id"):
        parse_position("startingOffsets", text)


def test_ids_are_compared_as_numbers():
    assert Position("9-0").is_before("10-0")
    assert Position("9-9").is_before("9-10")
    assert not Position("10-0").is_before("10-0")


def test_the_beginning_is_behind_what_was_trimmed():
    assert first_position(FACTS) == Position("0-0", 6)


def test_the_end_is_the_last_id_with_the_whole_count():
    assert last_position(FACTS) == Position("10-0", 10)


@pytest.mark.parametrize(
    ("entry_id", "expected"), [("6-9", False), ("7-0", True), ("9-0", True), ("10-0", False)]
)
def test_inside_is_from_the_first_entry_to_before_the_last(entry_id, expected):
    assert is_inside(entry_id, FACTS) is expected


def test_nothing_is_inside_of_an_empty_stream():
    assert not is_inside("9-0", EMPTIED)


@pytest.mark.parametrize(
    ("entry_id", "facts", "count"),
    [
        pytest.param("3-0", FACTS, 6, id="trimmed"),
        pytest.param("10-0", FACTS, 10, id="caught up"),
        pytest.param("11-0", FACTS, 10, id="ahead of a stream that was rolled back"),
        pytest.param("9-0", EMPTIED, 10, id="everything trimmed"),
        pytest.param("9-0", StreamFacts(), 0, id="deleted"),
        pytest.param("3-0", UNCOUNTED, None, id="server does not count"),
    ],
)
def test_at_the_edges_the_counter_tells_the_count(entry_id, facts, count):
    assert count_at_edge(entry_id, facts) == count


@pytest.mark.parametrize(("count", "expected"), [(6, False), (7, True), (10, True), (11, False)])
def test_an_entry_that_is_there_has_a_count_within_the_length(count, expected):
    assert is_plausible(Position("8-0", count), FACTS) is expected


def test_without_a_counter_no_count_is_plausible():
    assert not is_plausible(Position("8-0", 8), UNCOUNTED)
    assert not is_plausible(Position("8-0", None), FACTS)


def test_lost_is_what_the_counts_say_less_what_was_found():
    assert lost_between(Position("2-0", 2), Position("10-0", 10), 8) == 0
    assert lost_between(Position("2-0", 2), Position("10-0", 10), 4) == 4


def test_where_nobody_counted_nobody_knows_the_loss():
    assert lost_between(Position("2-0", None), Position("10-0", 10), 4) is None
    assert lost_between(Position("2-0", 2), Position("10-0", None), 4) is None


def test_more_than_was_counted_is_no_negative_loss():
    assert lost_between(Position("2-0", 2), Position("10-0", 10), 9) == 0


def test_a_lower_counter_means_that_the_stream_is_not_the_same():
    assert went_back(Position("2-0", 9), Position("2-0", 3))
    assert not went_back(Position("2-0", 3), Position("2-0", 9))
    assert not went_back(Position("2-0", None), Position("2-0", 9))
