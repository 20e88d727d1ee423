"""pace.lua: many writers, one rate."""

from __future__ import annotations


async def test_the_first_rows_pass_and_later_ones_wait_behind_all_before_them(run, raw):
    key = raw.keys.token("pace")

    waits = [await run("pace", [key], 100, "10") for _ in range(3)]

    # Ten seconds for each hundred; calls in between take their time, too.
    assert waits[0] == 0
    assert 5_000 < waits[1] <= 10_000
    assert 15_000 < waits[2] <= 20_000


async def test_a_pace_that_nobody_follows_is_forgotten(run, raw):
    key = raw.keys.token("pace")

    await run("pace", [key], 10, "10")

    assert 55_000 < await raw("PTTL", key) <= 61_001
