"""add_rows.lua: once per write token, once per id, never above the cap."""

from __future__ import annotations

import re

import pytest

from chasquimq.errors import StoreError
from chasquimq.store.net import script
from support.older import without_many_set

TTL_S = 120
UNIQUE_MS = 60_000


@pytest.fixture(params=[False, True], ids=["row by row", "at once"])
def at_once(request) -> bool:
    """Whether markers are set with one command; what is promised is the same."""
    return request.param


@pytest.fixture
def add(run, raw, at_once):
    """One call: rows are (envelope, name, digest, job id)."""

    async def call(*rows, token="t1", cap=0, unique_ms=UNIQUE_MS, leftovers=False):
        keys = raw.keys
        is_at_once = at_once and len({row[3] for row in rows}) == len(rows)
        named = [keys.stream, keys.token(token), *[keys.uniq(row[3]) for row in rows]]
        if leftovers:
            named += [key for *_, one in rows for key in (keys.outcome(one), keys.result(one))]
        envelopes, names, digests = ([row[at] for row in rows] for at in range(3))
        args = [*digests, *envelopes, *(names[:1] if len(set(names)) == 1 else names)]
        return await run(
            "add_rows", named, cap, TTL_S, unique_ms, int(is_at_once), len(rows), *args
        )

    return call


async def test_rows_are_added_in_order_with_their_names(add, raw):
    marks = await add(("e1", "greet", "d1", "one"), ("e2", "", "d2", "two"))

    assert marks == b"11"
    assert [fields for _, fields in await raw.entries(raw.keys.stream)] == [
        {b"d": b"e1", b"n": b"greet"},
        {b"d": b"e2"},
    ]


async def test_one_name_may_stand_for_all_rows(add, raw):
    marks = await add(("e1", "greet", "d1", "one"), ("e2", "greet", "d2", "two"))

    assert marks == b"11"
    assert [row[b"n"] for _, row in await raw.entries(raw.keys.stream)] == [b"greet", b"greet"]


async def test_rows_that_the_stream_refuses_are_not_marked_as_added(add, raw):
    await raw("XADD", raw.keys.stream, "18446744073709551615-18446744073709551614", "d", "x")
    rows = [(f"e{at}", "", f"d{at}", f"id{at}") for at in range(3)]

    with pytest.raises(StoreError):
        await add(*rows)

    left = [await raw("EXISTS", raw.keys.uniq(one)) for *_, one in rows]
    # One more fits behind the highest id but one; it is added, marked and told as known later.
    assert left == [1, 0, 0]
    assert await raw("XLEN", raw.keys.stream) == 2
    await raw("DEL", raw.keys.stream)
    assert await add(*rows, token="t2") == b"011"


async def test_an_id_is_added_once_and_another_job_of_it_is_told(add, raw):
    await add(("e1", "", "d1", "one"))

    marks = await add(("e1", "", "d1", "one"), ("e9", "", "d9", "one"), token="t2")

    assert marks == b"02"
    assert await raw("XLEN", raw.keys.stream) == 1


async def test_new_rows_beside_known_ones_are_added(add, raw):
    await add(("e2", "", "d2", "two"))

    rows = [("e1", "", "d1", "one"), ("e2", "", "d2", "two"), ("e3", "", "d3", "three")]
    marks = await add(*rows, token="t2")

    assert marks == b"101"
    assert [row[b"d"] for _, row in await raw.entries(raw.keys.stream)] == [b"e2", b"e1", b"e3"]
    assert await raw("MGET", *map(raw.keys.uniq, ("one", "two", "three"))) == [b"d1", b"d2", b"d3"]


async def test_a_thousand_rows_fit_one_call(add, raw):
    marks = await add(*((f"e{at}", "n", f"d{at}", f"id {at}") for at in range(1_000)))

    assert marks == b"1" * 1_000
    assert await raw("XLEN", raw.keys.stream) == 1_000
    assert await raw("GET", raw.keys.uniq("id 999")) == b"d999"


async def test_an_id_that_comes_twice_in_a_write_is_added_once(add, raw):
    marks = await add(("e1", "", "d1", "one"), ("e1", "", "d1", "one"), ("e3", "", "d3", "one"))

    assert marks == b"102"


async def test_a_resend_answers_what_the_first_send_did(add, raw):
    rows = [("e1", "", "d1", "one"), ("e2", "", "d2", "two")]
    first = await add(*rows)

    assert await add(*rows) == first == b"11"
    assert await raw("XLEN", raw.keys.stream) == 2
    assert TTL_S - 5 <= await raw("TTL", raw.keys.token("t1")) <= TTL_S


async def test_a_marker_lasts_for_its_time(add, raw):
    await add(("e1", "", "d1", "one"))

    assert UNIQUE_MS - 5_000 <= await raw("PTTL", raw.keys.uniq("one")) <= UNIQUE_MS
    assert await raw("GET", raw.keys.uniq("one")) == b"d1"


async def test_what_a_former_job_left_goes_with_the_new_one_only(add, raw):
    keys = raw.keys
    for one in ("new", "old"):
        await raw("SET", keys.result(one), "r")
        await raw("SET", keys.outcome(one), "o")
    await raw("SET", keys.uniq("old"), "d")

    marks = await add(("e1", "", "d", "new"), ("e2", "", "d", "old"), leftovers=True)

    assert marks == b"10"
    assert await raw("EXISTS", keys.result("new"), keys.outcome("new")) == 0
    assert await raw("EXISTS", keys.result("old"), keys.outcome("old")) == 2


async def test_rows_that_do_not_fit_are_not_added(add, raw, snapshot):
    await add(("e1", "", "d1", "one"), ("e2", "", "d2", "two"))
    before = await snapshot()

    assert await add(("e3", "", "d3", "three"), token="t2", cap=2) == b"full"

    assert await snapshot() == before


async def test_rows_that_are_there_need_no_room(add):
    await add(("e1", "", "d1", "one"), ("e2", "", "d2", "two"))

    assert await add(("e1", "", "d1", "one"), token="t2", cap=2) == b"0"
    assert await add(("e3", "", "d3", "x"), ("e3", "", "d3", "x"), token="t3", cap=3) == b"10"


@pytest.mark.parametrize(
    ("options", "words"),
    [({"unique_ms": 0}, "unique_for_ms must be a time"), ({}, "must be one row to a thousand")],
)
async def test_wrong_arguments_are_refused_before_anything_is_written(
    add, snapshot, options, words
):
    rows = [("e1", "", "d1", "one")] if options else []

    with pytest.raises(StoreError, match=words):
        await add(*rows, **options)

    assert await snapshot() == {}


async def test_a_key_of_the_wrong_type_leaves_nothing(add, raw, snapshot):
    await raw("SET", raw.keys.stream, "no stream")
    before = await snapshot()

    with pytest.raises(StoreError):
        await add(("e1", "", "d1", "one"))

    assert await snapshot() == before


@pytest.fixture
async def ran(raw):
    """How often the server ran a command since the test began."""
    await raw("CONFIG", "RESETSTAT")

    async def count(command: str) -> int:
        stats = (await raw("INFO", "commandstats")).decode()
        found = re.search(rf"cmdstat_{command}:calls=(\d+)", stats)
        return int(found[1]) if found else 0

    return count


@pytest.mark.needs("MSETEX")
async def test_markers_of_new_rows_are_set_with_one_command(add, at_once, ran):
    await add(*((f"e{at}", "", f"d{at}", f"id {at}") for at in range(100)))

    # One more SET is the token's.
    assert (await ran("msetex"), await ran("set")) == ((1, 1) if at_once else (0, 101))


async def test_a_server_that_took_over_without_the_command_sets_row_by_row(kind, at_once):
    async with without_many_set(kind) as (_, raw):
        keys = raw.keys
        named = [keys.stream, keys.token("t"), keys.uniq("one"), keys.uniq("two")]
        args = (0, TTL_S, UNIQUE_MS, int(at_once), 2, "d1", "d2", "e1", "e2", "")

        assert await script.run(raw.connection, "add_rows", named, *args) == b"11"
        assert await raw("MGET", *named[2:]) == [b"d1", b"d2"]
        assert await raw("XLEN", keys.stream) == 2
