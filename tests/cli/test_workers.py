"""`chasqui workers` tells the living from the dead."""

from __future__ import annotations

import msgspec
import pytest

from support.waiting import eventually

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


async def test_a_worker_shows_its_lease_version_and_host(chasqui, queue_name, raw, running_worker):
    async def handler(job) -> None: ...

    running = await running_worker({"send": handler}, claim_min_idle_ms=5_000)
    await eventually(lambda: raw("EXISTS", raw.keys.worker(running.worker.consumer_id)))

    said = await chasqui("workers", queue_name)
    (facts,) = (await chasqui("workers", queue_name, "--json")).json

    record = msgspec.msgpack.decode(await raw("GET", raw.keys.worker(facts["worker"])))
    assert {key: facts[key] for key in ("lease_ms", "version", "host", "pid", "handlers")} == {
        "lease_ms": 5_000, "version": record["version"], "host": record["host"],
        "pid": record["pid"], "handlers": ["send"],
    }  # fmt: skip
    assert "5 s" in said.rows[0]
    assert record["host"] in said.rows[0]


async def test_a_silent_worker_says_when_its_jobs_are_taken_over(chasqui, queue_name, raw):
    await raw("XADD", raw.keys.stream, "*", "d", "x")
    await raw("XGROUP", "CREATE", raw.keys.stream, "default", "0", "MKSTREAM")
    await raw("XREADGROUP", "GROUP", "default", "w", "STREAMS", raw.keys.stream, ">")
    record = {"group": "default", "lease_ms": 12_000, "ttl_ms": 72_000}
    await raw("SET", raw.keys.worker("w"), msgspec.msgpack.encode(record), "PX", 72_000)

    async def look():
        (facts,) = (await chasqui("workers", queue_name, "--json")).json
        return facts

    async def is_in(state):
        facts = await look()
        return facts["state"] == state and facts

    silent = await eventually(lambda: is_in("silent"))
    assert 0 < silent["taken_over_in_ms"] <= 6_000
    assert silent["silent_ms"] + silent["taken_over_in_ms"] == 12_000
    assert (await eventually(lambda: is_in("dead")))["taken_over_in_ms"] == 0
    assert "taken over by the next reader" in (await chasqui("workers", queue_name)).out


async def test_what_was_given_back_is_held_by_nobody(chasqui, queue_name, raw):
    await raw("XADD", raw.keys.stream, "*", "d", "x")
    await raw("XGROUP", "CREATE", raw.keys.stream, "default", "0", "MKSTREAM")
    await raw("XREADGROUP", "GROUP", "default", "returned", "STREAMS", raw.keys.stream, ">")

    said = await chasqui("workers", queue_name)
    (facts,) = (await chasqui("workers", queue_name, "--json")).json

    assert (facts["state"], facts["pending"], facts["parked"]) == ("parking", 0, 1)
    assert "1 wait for the next worker" in said.rows[0]


async def test_a_worker_of_the_other_implementation_is_shown_as_such(chasqui, queue_name, raw):
    name = "c-0f8fad5b-d9cb-469f-a165-70867728950e"
    await raw("XGROUP", "CREATE", raw.keys.stream, "default", "0", "MKSTREAM")
    await raw("XGROUP", "CREATECONSUMER", raw.keys.stream, "default", name)

    said = await chasqui("workers", queue_name)

    assert said.rows[0][:2] == [name, "alive"]
    assert "ChasquiMQ (Rust)" in said.rows[0]
