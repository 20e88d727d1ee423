"""`chasqui queues` finds every queue, whatever it holds, and nothing that is none."""

from __future__ import annotations

import pytest

from chasquimq import Queue
from chasquimq.queue.inspector import Inspector
from chasquimq.store.inspect.queue import escaped

pytestmark = pytest.mark.takes_turns


async def test_every_queue_is_listed_with_its_depths(chasqui, queue, queue_name):
    await queue.add("a", 1)
    await queue.add("a", 1, delay_ms=60_000)

    said = await chasqui("queues")
    as_json = await chasqui("queues", "--json")

    assert [queue_name, "1", "0", "0", "1", "0"] in said.rows
    assert queue_name in [one["queue"] for one in as_json.json]


async def test_a_queue_with_only_delayed_only_dead_or_only_planned_jobs_is_found(
    url, queue_name, raw
):
    for place, command in (
        ("delayed", ("ZADD", "KEY", "1", "x")),
        ("repeat", ("ZADD", "KEY", "1", "x")),
        ("dlq", ("XADD", "KEY", "*", "d", "x")),
    ):
        key = "{chasqui:" + f"{queue_name}-{place}" + "}:" + place
        await raw(*[key if part == "KEY" else part for part in command])

    async with Inspector(redis_url=url) as inspector:
        found = [name for name in await inspector.queues() if name.startswith(queue_name)]

    assert found == [f"{queue_name}-{place}" for place in ("delayed", "dlq", "repeat")]


async def test_keys_of_others_and_keys_of_jobs_are_no_queues(url, queue_name, raw):
    for key in (
        "{chasqui:" + queue_name + " x}:stream",
        "{chasqui:}:stream",
        "x{chasqui:y}:stream",
        "{chasqui:" + queue_name + "}:result:stream",
        "{chasqui:" + queue_name + "}:events",
    ):
        await raw("XADD", key, "*", "d", "x")
    await raw("XADD", b"{chasqui:\xff}:stream", "*", "d", "x")

    async with Inspector(redis_url=url) as inspector:
        found = await inspector.queues()

    assert [name for name in found if queue_name in name or name in ("", "y")] == []


async def test_many_queues_are_counted_in_few_writes(url, queue_name):
    names = [f"{queue_name}-{at:03d}" for at in range(120)]
    for name in names:
        async with Queue(name, redis_url=url) as queue:
            await queue.add("a", 1)

    async with Inspector(redis_url=url) as inspector:
        survey = await inspector.survey(names)

    assert [(one.queue, one.stream_depth) for one in survey.snapshots] == [
        (name, 1) for name in names
    ]


@pytest.mark.own_server
async def test_a_broken_queue_is_named_and_hides_no_other(raw, queue_name, chasqui):
    nothing = await chasqui("queues")
    await raw("XADD", "{chasqui:good}:stream", "*", "d", "x")
    await raw("XADD", raw.keys.stream, "*", "d", "x")
    await raw("SET", raw.keys.delayed, "x")

    listed, page = await chasqui("queues"), await chasqui("metrics")

    assert (nothing.code, nothing.out, nothing.err) == (0, "", "this server has no queues\n")
    assert (listed.code, page.code) == (1, 1)
    assert [row[:2] for row in listed.rows] == [["good", "1"]]
    assert 'chasquimq_queue_ready{queue="good",group="default"} 1' in page.out
    assert f"{{chasqui:{queue_name}}}:delayed must hold a zset, found a string" in listed.err


def test_a_pattern_matches_only_the_text_it_was_made_from():
    assert escaped(r"{chasqui:a*[b]?\c^}:") == r"{chasqui:a\*\[b\]\?\\c\^}:"
