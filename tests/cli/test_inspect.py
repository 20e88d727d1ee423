"""`chasqui inspect` shows what the original shows, and says in one line what is wrong."""

from __future__ import annotations

import asyncio

import pytest

from support.command import ESCAPES
from support.waiting import eventually

pytestmark = pytest.mark.takes_turns


async def test_it_shows_the_rows_of_the_original(chasqui, queue_name, raw):
    await raw("XADD", raw.keys.stream, "*", "d", "x")
    await raw("XADD", raw.keys.dlq, "*", "d", "x")
    await raw("ZADD", raw.keys.delayed, 9_999_999_999_999, "x")
    await raw("ZADD", raw.keys.repeat, 9_999_999_999_999, "x")

    said = await chasqui("inspect", queue_name)

    assert said.code == 0
    assert said.out.splitlines()[0].split("  ")[0] == f"queue: {queue_name}"
    assert said.out.splitlines()[0].endswith("group: default")
    assert said.rows == [
        ["stream depth", "1"],
        ["pending", "0 (group not created)"],
        ["DLQ depth", "1"],
        ["delayed depth", "1"],
        ["oldest delayed lag (ms)", "0"],
        ["repeatable count", "1"],
        ["given back, waiting", "0"],
        ["workers", "none"],
    ]
    assert said.err == ""


async def test_the_lag_is_a_dash_where_nothing_is_delayed(chasqui, queue, queue_name):
    await queue.add("a", 1)

    said = await chasqui("inspect", queue_name)

    assert ["oldest delayed lag (ms)", "-"] in said.rows


async def test_a_late_job_shows_how_late_by_the_servers_clock(chasqui, queue_name, raw):
    await raw("ZADD", raw.keys.delayed, 1_000, b"\0\0\0\0late")

    said = await chasqui("inspect", queue_name, "--json")

    assert said.json["oldest_delayed_lag_ms"] == said.json["at_ms"] - 1_000


async def test_pending_is_that_of_the_group(chasqui, queue, queue_name, raw):
    await queue.add("a", 1)
    await raw("XGROUP", "CREATE", raw.keys.stream, "other", "0")
    await raw("XREADGROUP", "GROUP", "other", "me", "STREAMS", raw.keys.stream, ">")

    said = await chasqui("inspect", queue_name, "--group", "other", "--json")

    assert (said.json["group"], said.json["group_created"], said.json["pending"]) == (
        "other", True, 1,
    )  # fmt: skip


async def test_json_has_a_number_for_every_row(chasqui, queue_name, raw):
    await raw("XADD", raw.keys.stream, "*", "d", "x")

    facts = (await chasqui("inspect", queue_name, "--json")).json

    assert facts.pop("at_ms") > 0
    assert facts == {
        "queue": queue_name, "group": "default", "group_created": False, "stream_depth": 1,
        "pending": 0, "parked": 0, "dlq_depth": 0, "delayed_depth": 0, "oldest_delayed_lag_ms": None,
        "repeatable_count": 0, "workers": {"alive": 0, "silent": 0, "dead": 0},
    }  # fmt: skip


async def test_it_says_who_works_and_what_was_given_back(
    chasqui, queue, queue_name, running_worker
):
    gate = asyncio.Event()

    async def blocks(job) -> None:
        await gate.wait()

    leaver = await running_worker(blocks, concurrency=1, read_count=10)
    await queue.add_bulk([{"name": "n", "data": at} for at in range(5)])
    await eventually(lambda: leaver.worker.health().waiting == 4)
    working = await chasqui("inspect", queue_name)
    await leaver.cut_short()
    gate.set()

    left = await chasqui("inspect", queue_name)
    exposed = (await chasqui("metrics", queue_name)).out

    assert ["pending", "5"] in working.rows
    assert ["workers", "1 alive"] in working.rows
    assert ["pending", "0"] in left.rows
    assert ["given back, waiting", "5"] in left.rows
    assert ["workers", "none"] in left.rows
    labels = f'{{queue="{queue_name}",group="default"}}'
    assert f"chasquimq_queue_ready{labels} 5\n" in exposed
    assert f"chasquimq_queue_pending{labels} 0\n" in exposed


@pytest.mark.parametrize("columns", [80, 160])
async def test_a_terminal_gets_a_frame_dashed_columns_and_a_double_line(
    terminal, queue, queue_name, columns
):
    await queue.add("a", 1)

    said = await terminal("inspect", queue_name, columns=columns)

    lines = [ESCAPES.sub("", line) for line in said.out.splitlines()]
    top = next(at for at, line in enumerate(lines) if line.startswith("┌"))
    assert lines[top + 1].startswith("│ queue: ")
    assert "┆" in lines[top + 1]
    assert lines[top + 2].startswith("╞═")
    assert lines[top + 2].endswith("═╡")
    assert lines[-1].startswith("└─")
    assert lines[-1].endswith("─┘")
    assert max(map(len, lines[top:])) <= columns


async def test_an_unknown_queue_is_code_1_and_names_the_queues_there_are(
    chasqui, queue, queue_name
):
    await queue.add("a", 1)

    said = await chasqui("inspect", f"{queue_name}x")

    assert said.code == 1
    assert said.out == ""
    assert said.err.startswith(f"error: no queue named '{queue_name}x'; queues: {queue_name}")
    assert said.err.count("\n") == 1


async def test_a_key_of_the_wrong_type_is_named_in_one_line(chasqui, queue, queue_name, raw):
    await queue.add("a", 1)
    await raw("SET", raw.keys.dlq, "x")

    said = await chasqui("inspect", queue_name)

    assert said.code == 1
    assert said.err == (
        f"error: the key {raw.keys.dlq} must hold a stream, found a string; "
        "rename or delete the key\n"
    )


async def test_a_server_that_is_not_there_is_one_line_without_the_password(bare_chasqui):
    said = await bare_chasqui("inspect", "q")

    assert said.code == 1
    assert said.err.startswith("error: a server must answer at redis://me:***@127.0.0.1:1")
    assert said.err.endswith(" (this server because CHASQUI_REDIS_URL is set)\n")
    assert said.err.count("\n") == 1
    assert "canary" not in said.err


async def test_a_variable_that_holds_no_url_is_wrong_usage_by_its_name(bare_chasqui):
    said = await bare_chasqui("inspect", "q", CHASQUI_REDIS_URL="ftp://me:canary@host")

    assert said.code == 2
    assert said.err.startswith("error: CHASQUI_REDIS_URL must be redis://")
    assert said.err.count("\n") == 1
    assert "canary" not in said.err


async def test_without_a_server_nothing_is_guessed_and_nothing_started(bare_chasqui, tmp_path):
    said = await bare_chasqui("inspect", "q", CHASQUI_REDIS_URL="", XDG_RUNTIME_DIR=str(tmp_path))

    assert said.code == 1
    assert "give --redis-url" in said.err
    assert not (tmp_path / ".chasqui").exists()


@pytest.mark.parametrize("name", ["a b", "{x}", "a*", ""])
async def test_a_name_no_queue_can_have_is_refused_in_one_line(bare_chasqui, name):
    said = await bare_chasqui("inspect", name)

    assert said.code == 2
    assert said.err.startswith("error: queue name must be")
    assert said.err.count("\n") == 1


async def test_a_name_that_is_no_utf_8_is_refused_in_one_line(bare_chasqui):
    said = await bare_chasqui("inspect", b"caf\xe9".decode(errors="surrogateescape"))

    assert said.code == 2
    assert said.err.count("\n") == 1
    assert "surrogates" in said.err
