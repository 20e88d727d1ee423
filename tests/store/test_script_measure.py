"""measure: how far entries and rows reach, in numbers alone."""

from __future__ import annotations

import pytest


@pytest.fixture
def measure(run, raw):
    async def call(after="0-0", until="+", entries_max=100, rows_max=1_000, field="n"):
        return await run("measure", [raw.keys.history], after, until, entries_max, rows_max, field)

    return call


@pytest.fixture
async def history(raw):
    """Three entries with 5, 7 and 9 rows, and one that does not say."""
    key = raw.keys.history
    await raw("XADD", key, "1-0", "w", "me", "n", 5)
    await raw("XADD", key, "2-0", "n", 7, "b", "x")
    await raw("XADD", key, "3-0", "n", 9)
    await raw("XADD", key, "4-0", "other", "thing")


async def test_nothing_there_is_nothing(measure):
    assert await measure() == []


async def test_all_entries_and_their_rows_are_counted(measure, history):
    assert await measure() == [b"4-0", 4, 22]


async def test_it_begins_behind_one_id_and_ends_with_another(measure, history):
    assert await measure(after="1-0", until="3-0") == [b"3-0", 2, 16]


async def test_it_stops_after_so_many_entries(measure, history):
    assert await measure(entries_max=2) == [b"2-0", 2, 12]


@pytest.mark.parametrize(("rows_max", "entries"), [(12, 2), (13, 2), (20, 2), (21, 3)])
async def test_it_stops_before_too_many_rows(measure, history, rows_max, entries):
    assert (await measure(rows_max=rows_max))[1] == entries


async def test_one_entry_is_taken_whatever_it_holds(measure, history):
    assert await measure(rows_max=1) == [b"1-0", 1, 5]


async def test_without_a_field_an_entry_is_a_row(measure, history):
    assert await measure(field="") == [b"4-0", 4, 4]


@pytest.mark.parametrize("text", ["0", "-3", "nan", "1e9", "9" * 12, ""])
async def test_a_number_that_is_none_counts_as_one_row(measure, raw, text):
    await raw("XADD", raw.keys.history, "1-0", "n", text)

    assert await measure() == [b"1-0", 1, 1]
