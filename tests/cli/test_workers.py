"""`chasqui workers` tells the living from the dead."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.takes_turns


async def test_a_running_worker_is_alive_and_shows_what_it_holds(
    chasqui, queue_name, running_worker
):
    async def handler(job) -> None: ...

    running = await running_worker(handler)

    said = await chasqui("workers", queue_name)

    assert [row[:3] for row in said.rows] == [[running.worker.consumer_id, "alive", "0"]]


async def test_a_silent_one_is_dead_after_its_lease_and_parking_is_nobody(chasqui, queue_name, raw):
    await raw("XADD", raw.keys.stream, "*", "d", "x")
    await raw("XGROUP", "CREATE", raw.keys.stream, "default", "0")
    await raw("XREADGROUP", "GROUP", "default", "gone", "STREAMS", raw.keys.stream, ">")
    await raw("XGROUP", "CREATECONSUMER", raw.keys.stream, "default", "returned")

    by_default = await chasqui("workers", queue_name, "--json")
    short = await chasqui("workers", queue_name, "--lease", "1ms")

    assert [(one["worker"], one["state"]) for one in by_default.json] == [
        ("gone", "alive"), ("returned", "parking"),
    ]  # fmt: skip
    assert [row[:3] for row in short.rows] == [["gone", "dead", "1"], ["returned", "parking", "0"]]


@pytest.mark.parametrize("group", ["default", "other"])
async def test_no_worker_yet_is_said_on_stderr(chasqui, queue_name, raw, group):
    await raw("XADD", raw.keys.stream, "*", "d", "x")

    said = await chasqui("workers", queue_name, "--group", group)

    assert (said.code, said.out) == (0, "")
    assert said.err == f"no worker of group {group} has been seen\n"
