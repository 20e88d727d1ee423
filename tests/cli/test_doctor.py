"""`chasqui doctor` finds what is wrong, says what to do, and changes nothing."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from chasquimq.cli.output.render import mask_url
from chasquimq.model.diagnosis import ServerFacts, check_server
from chasquimq.model.queue_diagnosis import QueueFacts, RunTimes, check_queue
from chasquimq.model.snapshot import GroupUse, Snapshot, WorkerSnapshot
from chasquimq.store.net import script
from support.command import ESCAPES
from support.waiting import eventually

LEASE_MS = 30_000
SERVER = ServerFacts(
    kind="redis", version="8.6.2", role="master", is_loading=False, rtt_ms=1, clock_ahead_ms=0,
    abilities={"ack_delete": True, "claim_on_read": True, "idempotent_add": True},
    eviction_policy="noeviction", used_bytes=1 << 20, maxmemory_bytes=0, system_bytes=1 << 34,
    has_aof=True, appendfsync="everysec", saves=True, last_aof_write="ok", last_save="ok",
    client_count=5, client_max=10_000,
)  # fmt: skip
SNAPSHOT = Snapshot(
    queue="q", group="default", at_ms=0, exists=True, has_group=True, stream_depth=0, pending=0,
    dlq_depth=0, delayed_depth=0, oldest_delayed_lag_ms=None, repeatable_count=0, added_total=0,
)  # fmt: skip
ALIVE = WorkerSnapshot(name="w1", pending=1, idle_ms=100)
DEAD = WorkerSnapshot(name="w2", pending=3, idle_ms=90_000)
QUEUE = QueueFacts(
    snapshot=SNAPSHOT, groups=[GroupUse("default", 1, 1)], workers=[ALIVE], ghost_count=0, pending_looked_at=0,
    run_times=RunTimes(10, 1, 5, 9), unique_count=0, unique_bytes=None, unique_is_complete=True,
    promoter="w1", scheduler="w1", repeat_lag_ms=None, quarantined_count=0,
)  # fmt: skip


def test_a_good_server_and_a_good_queue_are_no_trouble():
    findings = check_server(SERVER) + check_queue(QUEUE, LEASE_MS)

    assert [finding for finding in findings if finding.is_problem] == []


@pytest.mark.parametrize(
    ("change", "check", "words"),
    [
        ({"version": "6.0.9"}, "server", "6.0.9"),
        ({"role": "replica"}, "role", "this server is a replica"),
        ({"is_loading": True}, "role", "still loading"),
        ({"eviction_policy": "allkeys-lru"}, "eviction policy", "harmless only while"),
        (
            {"eviction_policy": "allkeys-lru", "maxmemory_bytes": 1 << 30},
            "eviction policy", "jobs vanish",
        ),
        ({"has_aof": False}, "persistence", "snapshots only"),
        ({"has_aof": False, "saves": False}, "persistence", "a restart loses every job"),
        ({"appendfsync": "no"}, "persistence", "the system decides"),
        ({"last_aof_write": "err"}, "persistence", "append-only file failed"),
        ({"last_save": "err"}, "persistence", "snapshot failed"),
        ({"maxmemory_bytes": 1 << 20}, "memory", "100% of 1 MiB"),
        ({"clock_ahead_ms": -5_000}, "clock", "5,000 ms behind us"),
        ({"client_count": 9_900}, "clients", "9,900 of 10,000"),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_every_trouble_of_a_server_is_found_with_a_remedy(change, check, words):
    findings = check_server(msgspec.structs.replace(SERVER, **change))

    (trouble,) = [finding for finding in findings if finding.is_problem]
    assert (trouble.check, words in trouble.found, bool(trouble.remedy)) == (check, True, True)


@pytest.mark.parametrize(
    ("change", "check", "words"),
    [
        ({"groups": [GroupUse("default", 1), GroupUse("b", 0, 2)]}, "group", "2 groups share"),
        ({"groups": [GroupUse("default", 1), GroupUse("b")]}, "group", "no worker uses it"),
        ({"workers": [ALIVE, DEAD]}, "dead worker", "w2 holds 3 jobs, silent for 90 s"),
        ({"ghost_count": 2, "pending_looked_at": 9}, "ghosts", "2 of 9"),
        ({"quarantined_count": 1}, "firing", "quarantined"),
        ({"repeat_lag_ms": 9_000, "scheduler": None}, "firing", "9.0 s late"),
        ({"run_times": RunTimes(9, 1, 40_000, 60_000)}, "lease", "the longest 60,000.0 ms"),
        ({"unique_count": 4_000_000, "unique_bytes": 1 << 30}, "unique ids", "about 1 GiB"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_every_trouble_of_a_queue_is_found_with_a_remedy(change, check, words):
    findings = check_queue(msgspec.structs.replace(QUEUE, **change), LEASE_MS)

    (trouble,) = [finding for finding in findings if finding.is_problem]
    assert (trouble.check, words in trouble.found, bool(trouble.remedy)) == (check, True, True)


@pytest.mark.parametrize(
    ("change", "more", "check", "words"),
    [
        ({"dlq_depth": 100_001}, {}, "DLQ", "100,001 entries"),
        ({"stream_depth": 9}, {"workers": []}, "workers", "9 jobs are ready"),
        ({"oldest_delayed_lag_ms": 9_000}, {}, "promotion", "9.0 s late, led by w1"),
        ({"oldest_delayed_lag_ms": 9_000}, {"promoter": None}, "promotion", "no promoter leads"),
        (
            {"stream_depth": 9, "has_group": False},
            {"groups": [GroupUse("b", 1)]},
            "group",
            "'b' (1 consumer, 0 pending) is in use: a worker of 'default' is refused",
        ),
        ({"stream_depth": 9, "has_group": False}, {"groups": []}, "group", "no group 'default'"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_every_trouble_of_the_depths_is_found_with_a_remedy(change, more, check, words):
    snapshot = dataclasses.replace(SNAPSHOT, **change)
    facts = msgspec.structs.replace(QUEUE, snapshot=snapshot, **more)

    (trouble,) = [finding for finding in check_queue(facts, LEASE_MS) if finding.is_problem]
    assert (trouble.check, words in trouble.found, bool(trouble.remedy)) == (check, True, True)


@pytest.mark.parametrize(
    ("lag_ms", "promoter", "words"),
    [
        (1_340, None, "the first delayed job is 1.3 s late, no promoter leads"),
        (1_340, "w1", "the first delayed job is 1.3 s late, led by w1"),
        (0, None, "nothing is late, no promoter leads"),
        (None, None, "nothing is late, no promoter leads"),
        (None, "w1", "nothing is late, led by w1"),
    ],
)
def test_a_small_lag_is_no_trouble_and_told_as_inspect_tells_it(lag_ms, promoter, words):
    snapshot = dataclasses.replace(SNAPSHOT, oldest_delayed_lag_ms=lag_ms)
    facts = msgspec.structs.replace(QUEUE, snapshot=snapshot, promoter=promoter)

    (found,) = [one for one in check_queue(facts, LEASE_MS) if one.check == "promotion"]
    assert (found.level, found.found) == ("ok", words)


def test_a_server_that_tells_little_is_no_trouble():
    silent = msgspec.structs.replace(
        SERVER, eviction_policy=None, system_bytes=None, appendfsync=None, saves=None,
        client_max=None, has_aof=False,
    )  # fmt: skip

    assert not any(finding.is_problem for finding in check_server(silent))


async def test_abilities_are_told_with_what_stands_in_for_them(chasqui, queue, queue_name, kind):
    await queue.add("a", 1)

    checks = {
        one["check"]: one for one in (await chasqui("doctor", queue_name, "--json")).json["checks"]
    }

    level = "ok" if kind.label.startswith("redis") else "note"
    names = ("ack_delete", "claim_on_read", "idempotent_add")
    assert [checks[name]["level"] for name in names] == [level] * 3


@pytest.mark.own_server(aof="everysec")
async def test_a_healthy_queue_on_a_safe_server_is_code_0(chasqui):
    await chasqui("add", "q", "a", "--delay", "1h")
    said = await chasqui("doctor")

    assert said.code == 0, said.out
    assert said.out.endswith("\nnothing to do\n")


async def test_findings_are_code_1_with_a_remedy_each(chasqui, queue, queue_name, raw):
    await queue.add("a", 1, job_id="mine")
    await raw("XGROUP", "CREATE", raw.keys.stream, "other", "0")
    await raw("ZADD", raw.keys.delayed, 1_000, b"\0\0\0\0late")

    said = await chasqui("doctor", queue_name)
    facts = (await chasqui("doctor", queue_name, "--json")).json

    troubles = {one["check"] for one in facts["checks"] if one["level"] in ("warning", "error")}
    # The servers of the tests keep nothing on disk.
    assert troubles >= {"persistence", "workers", "promotion", "group"}
    assert (said.code, facts["ok"]) == (1, False)
    assert all(one["remedy"] for one in facts["checks"] if one["check"] in troubles - {"group"})
    assert "to do" in said.out
    (unique,) = [one["found"] for one in facts["checks"] if one["check"] == "unique ids"]
    assert unique.startswith("1 kept, about ")


async def test_two_groups_in_use_are_an_error_that_names_both(chasqui, queue, queue_name, raw):
    await queue.add("a", 1)
    for group in ("default", "other"):
        if group == "other" or not await raw("XINFO", "GROUPS", raw.keys.stream):
            await raw("XGROUP", "CREATE", raw.keys.stream, group, "0")
        await raw("XREADGROUP", "GROUP", group, "c", "STREAMS", raw.keys.stream, ">")

    checks = (await chasqui("doctor", queue_name, "--json")).json["checks"]

    (found,) = [one for one in checks if one["check"] == "group"]
    assert found["level"] == "error"
    assert "'default' (1 consumer, 1 pending), 'other' (1 consumer, 1 pending)" in found["found"]
    assert f"`chasqui group remove {queue_name} other`" in found["remedy"]


@pytest.mark.parametrize("has_default", [False, True], ids=["no default", "an unused default"])
async def test_a_group_that_keeps_a_worker_out_is_an_error_with_a_command_that_works(
    chasqui, queue_name, raw, has_default
):
    if has_default:
        await raw("XGROUP", "CREATE", raw.keys.stream, "default", "0", "MKSTREAM")
    await raw("XGROUP", "CREATE", raw.keys.stream, "a", "0", "MKSTREAM")
    await raw("XGROUP", "CREATECONSUMER", raw.keys.stream, "a", "w")

    said = await chasqui("doctor", queue_name, "--json")
    of_a = (await chasqui("doctor", queue_name, "--group", "a", "--json")).json["checks"]

    (found,) = [one for one in said.json["checks"] if one["check"] == "group"]
    assert (said.code, found["level"]) == (1, "error")
    assert (
        found["found"] == "'a' (1 consumer, 0 pending) is in use: a worker of 'default' is refused"
    )
    assert [one["level"] for one in of_a if one["check"] == "group"] != ["error"]
    await raw("XGROUP", "DELCONSUMER", raw.keys.stream, "a", "w")
    await chasqui(*found["remedy"].split("`")[1].split()[1:], "--yes")
    again = (await chasqui("doctor", queue_name, "--json")).json["checks"]
    assert [one["level"] for one in again if one["check"] == "group"] != ["error"]


async def test_ghosts_and_dead_workers_are_found_and_left_alone(chasqui, queue_name, raw):
    for _ in range(3):
        await raw("XADD", raw.keys.stream, "*", "d", "x")
    await raw("XGROUP", "CREATE", raw.keys.stream, "default", "0")
    await raw("XREADGROUP", "GROUP", "default", "gone", "STREAMS", raw.keys.stream, ">")
    ((first, *_), *_) = await raw.pending()
    await raw("XDEL", raw.keys.stream, first)

    facts = (await chasqui("doctor", queue_name, "--lease", "1ms", "--json")).json

    found = {one["check"]: one["found"] for one in facts["checks"]}
    assert found["ghosts"] == "1 of 3 pending entries have no body"
    assert found["dead worker"].startswith("gone holds 3 jobs")
    assert len(await raw.pending()) == 3


async def test_counting_ghosts_goes_page_by_page(raw):
    stream = raw.keys.stream
    for _ in range(5):
        await raw("XADD", stream, "*", "d", "x")
    await raw("XGROUP", "CREATE", stream, "default", "0")
    await raw("XREADGROUP", "GROUP", "default", "gone", "STREAMS", stream, ">")
    ids = [row[0] for row in await raw.pending()]
    await raw("XDEL", stream, ids[0], ids[4])

    pages = [
        await script.run(raw.connection, "count_ghosts", [stream], "default", at, 3)
        for at in ("-", f"({ids[2].decode()}")
    ]

    assert pages == [[1, 3, b"(" + ids[2]], [1, 2, b""]]


async def test_a_key_of_the_wrong_type_is_a_finding(chasqui, queue, queue_name, raw):
    await queue.add("a", 1)
    await raw("SET", raw.keys.events, "x")

    facts = (await chasqui("doctor", queue_name, "--json")).json

    (wrong,) = [one for one in facts["checks"] if one["check"] == "keys"]
    assert wrong["level"] == "error"
    assert wrong["found"] == f"the key {raw.keys.events} must hold a stream, found a string"


async def test_run_times_come_from_the_events(chasqui, queue, queue_name, running_worker):
    async def handler(job) -> None: ...

    await running_worker(handler)
    await queue.add_bulk([{"name": "a", "data": 1} for _ in range(20)])
    events = await chasqui(
        "events", queue_name, "--event", "completed", "--from", "0", "--count", "20"
    )

    facts = (await chasqui("doctor", queue_name, "--json")).json

    (lease,) = [one["found"] for one in facts["checks"] if one["check"] == "lease"]
    assert events.out.count("\n") == 20
    assert lease.startswith("30 s; of 20 runs")


@pytest.mark.parametrize("more", [[], ["--json"]])
async def test_a_server_that_is_not_there_is_a_finding_too(bare_chasqui, more):
    said = await bare_chasqui("doctor", *more)

    assert said.code == 1
    assert "redis://me:***@127.0.0.1:1" in said.out
    assert "chasqui server start" in said.out
    assert "canary" not in said.out + said.err


async def test_an_unknown_queue_is_code_1(chasqui, queue_name):
    said = await chasqui("doctor", queue_name)

    assert (said.code, said.out) == (1, "")
    assert said.err.startswith(f"error: no queue named '{queue_name}'")


async def test_the_report_fits_a_terminal(terminal, queue, queue_name):
    await queue.add("a", 1)

    said = await terminal("doctor", queue_name)

    lines = ESCAPES.sub("", said.out).splitlines()
    assert max(len(line) for line in lines if not line.startswith("server:")) <= 80


def of(said, check: str) -> list[dict]:
    return [one for one in said.json["checks"] if one["check"] == check]


async def noop(job) -> None: ...


async def fails(job) -> None:
    raise ValueError("no card was found")


async def test_jobs_that_nobody_has_a_handler_for_are_an_error_with_a_remedy(
    chasqui, queue, queue_name, running_worker
):
    stranger = await running_worker({"send": noop, "resize": noop})
    await queue.add_bulk([{"name": name, "data": 1} for name in ["sned"] * 3 + ["", "send"]])
    await eventually(lambda: stranger.worker.health().retried >= 4)

    said = await chasqui("doctor", queue_name, "--json")

    misspelt, nameless = of(said, "handlers")
    assert (said.code, misspelt["level"]) == (1, "error")
    assert "3 jobs wait for a handler named 'sned', which no live worker has" in misspelt["found"]
    assert "buried in" in misspelt["found"]
    assert "did you mean 'send'?" in misspelt["found"]
    assert "start a worker with a handler named 'sned'" in misspelt["remedy"]
    assert "1 job waits for a handler for jobs without a name" in nameless["found"]


async def test_a_worker_that_lacks_a_handler_others_have_is_named(
    chasqui, queue, queue_name, running_worker
):
    older = await running_worker({"resize": noop})
    await queue.add("send", 1)
    await eventually(lambda: older.worker.health().retried >= 1)
    await running_worker({"resize": noop, "send": noop})

    said = await chasqui("doctor", queue_name, "--json")

    (found,) = of(said, "handlers")
    assert found["level"] == "warning"
    assert older.worker.consumer_id in found["found"]
    assert "the same handlers" in found["remedy"]


async def test_a_dlq_that_grows_says_how_fast_and_what_of(
    chasqui, queue, queue_name, raw, running_worker
):
    await raw("XADD", raw.keys.dlq, "1-1", "d", "x", "reason", "expired")
    failing = await running_worker(fails)
    await queue.add_bulk([{"name": "charge", "data": at, "attempts": 1} for at in range(7)])
    await eventually(lambda: failing.worker.health().failed == 7)

    said = await chasqui("doctor", queue_name, "--json")

    (found,) = of(said, "DLQ")
    assert found["level"] == "warning"
    assert "it grows: 8 entries, 7 of the last hour, 7 of the last minute" in found["found"]
    assert "'charge' (retries_exhausted: ValueError: no card was found), 7 times" in found["found"]
    assert f"`chasqui dlq peek {queue_name}`" in found["remedy"]


async def test_a_dlq_that_was_left_alone_for_long_is_no_finding(chasqui, queue, queue_name, raw):
    await queue.add("n", 1)
    await raw("XADD", raw.keys.dlq, "1-1", "d", "x", "reason", "expired")

    assert [one["level"] for one in of(await chasqui("doctor", queue_name, "--json"), "DLQ")] == [
        "ok"
    ]


async def test_leases_that_differ_are_found_and_the_real_one_is_known(
    chasqui, queue, queue_name, running_worker
):
    await running_worker(noop, claim_min_idle_ms=20_000)
    one = await chasqui("doctor", queue_name, "--json")
    await running_worker(noop, claim_min_idle_ms=15_000)
    near = await chasqui("doctor", queue_name, "--json")
    await running_worker(noop, claim_min_idle_ms=5_000)
    far = await chasqui("doctor", queue_name, "--json")

    assert of(one, "leases") == []
    assert [found["level"] for found in of(near, "leases")] == ["warning"]
    assert [found["level"] for found in of(far, "leases")] == ["error"]
    assert "5 s and 15 s and 20 s" in of(far, "leases")[0]["found"]


async def test_versions_that_differ_are_found(chasqui, queue_name, raw, running_worker):
    await running_worker(noop)
    await raw("XGROUP", "CREATECONSUMER", raw.keys.stream, "default", "newer")
    record = {"group": "default", "lease_ms": 30_000, "ttl_ms": 90_000, "version": "9.0"}
    await raw("SET", raw.keys.worker("newer"), msgspec.msgpack.encode(record), "PX", 90_000)

    (found,) = of(await chasqui("doctor", queue_name, "--json"), "versions")

    assert found["level"] == "warning"
    assert found["found"].endswith("and 1 of 9.0")


async def test_the_server_that_was_asked_is_named_with_the_reason(chasqui, queue, queue_name, url):
    await queue.add("a", 1)

    said = await chasqui("doctor", queue_name, "--redis-url", url)
    named = (await chasqui("doctor", queue_name, "--redis-url", url, "--json")).json["server"]

    (row,) = [line for line in said.out.splitlines() if " server " in line]
    assert f"at {mask_url(url)} (its URL was given)" in row
    assert named == {"url": mask_url(url), "reason": "its URL was given"}


async def test_a_server_that_does_not_answer_is_named_once(chasqui):
    url = "redis://me:canary@127.0.0.1:1"

    said = await chasqui("doctor", CHASQUI_REDIS_URL=url)

    assert said.code == 1
    assert said.out.count("redis://me:***@127.0.0.1:1") == 1
    assert "(CHASQUI_REDIS_URL is set)" in said.out
