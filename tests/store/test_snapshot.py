"""A snapshot of a busy stream: what is added between two questions spoils no counter."""

from __future__ import annotations

import pytest

from chasquimq.store.inspect.queue import read_snapshot, snapshot_questions


@pytest.fixture
def snapshot_while(raw):
    """Ask one question after the other, and do something when the length has been told."""

    async def look(*meanwhile: tuple) -> tuple:
        replies = []
        for question in snapshot_questions(raw.keys, "default"):
            replies.append(await raw(*question))
            if question == ("XLEN", raw.keys.stream):
                for command in meanwhile:
                    await raw(*command)
        found = read_snapshot(raw.keys.queue, "default", replies)
        return found.stream_depth, found.added_total, found.left_total

    return look


async def test_an_entry_that_comes_meanwhile_has_not_left(snapshot_while, deliver, raw):
    await deliver("w")
    add = ("XADD", raw.keys.stream, "*", "d", "job")

    seen = [await snapshot_while(add), await snapshot_while()]

    assert seen == [(2, 2, 0), (2, 2, 0)]


async def test_an_entry_that_leaves_meanwhile_has_left(snapshot_while, deliver, raw):
    (entry_id, _) = await deliver("w", 2)

    assert await snapshot_while(("XDEL", raw.keys.stream, entry_id)) == (1, 2, 1)


async def test_a_stream_that_leaves_meanwhile_counts_from_zero(snapshot_while, deliver, raw):
    await deliver("w", 2)
    again = ("XGROUP", "CREATE", raw.keys.stream, "default", "0", "MKSTREAM")

    assert await snapshot_while(("DEL", raw.keys.stream), again) == (0, 0, 0)
