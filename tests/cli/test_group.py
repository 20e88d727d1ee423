"""`chasqui group` shows who may consume a queue, and opens the way for another group."""

from __future__ import annotations

import shlex

import pytest

from chasquimq import Worker
from chasquimq.errors import GroupConflict
from support.waiting import eventually

pytestmark = pytest.mark.takes_turns


async def noop(job) -> None: ...


@pytest.fixture
async def names(raw):
    async def ask() -> list[str]:
        return [row[1].decode() for row in await raw("XINFO", "GROUPS", raw.keys.stream)]

    return ask


async def hold(raw, group: str, count: int = 1) -> None:
    """Entries that a consumer of the group holds."""
    await raw("XGROUP", "CREATE", raw.keys.stream, group, "0", "MKSTREAM")
    for _ in range(count):
        await raw("XADD", raw.keys.stream, "*", "d", "x")
    await raw("XREADGROUP", "GROUP", group, "c", "STREAMS", raw.keys.stream, ">")


async def test_groups_are_listed_with_live_consumers_and_pending_jobs(chasqui, queue_name, raw):
    await hold(raw, "mails", 2)
    await raw("XGROUP", "CREATE", raw.keys.stream, "old", "0")

    said = await chasqui("group", "list", queue_name)
    facts = (await chasqui("group", "list", queue_name, "--json")).json

    assert said.rows == [["mails", "1", "2"], ["old", "0", "0"]]
    assert facts == [
        {"group": "mails", "consumers": 1, "pending": 2},
        {"group": "old", "consumers": 0, "pending": 0},
    ]


async def test_a_queue_without_a_group_is_told_on_stderr(chasqui, queue_name, raw):
    await raw("XADD", raw.keys.stream, "*", "d", "x")

    said = await chasqui("group", "list", queue_name)

    assert (said.code, said.out, said.err) == (0, "", "no group has been made yet\n")


async def test_removing_asks_for_the_name_of_the_group(chasqui, queue_name, raw, names):
    await raw("XGROUP", "CREATE", raw.keys.stream, "old", "0", "MKSTREAM")
    await raw("XGROUP", "CREATE", raw.keys.wake, "old", "0", "MKSTREAM")
    words = ("group", "remove", queue_name, "old")

    refused = await chasqui(*words, stdin=f"{queue_name}\n".encode())
    assert (refused.code, await names()) == (1, ["old"])
    assert "type the group's name to go on" in refused.err
    done = await chasqui(*words, stdin=b"old\n")

    assert (done.code, done.out) == (0, f"removed the group old of {queue_name}\n")
    assert await names() == []
    assert await raw("XINFO", "GROUPS", raw.keys.wake) == []


@pytest.mark.parametrize("more", [(), ("--yes",)])
async def test_a_group_in_use_stays_and_says_what_to_do(chasqui, queue_name, raw, names, more):
    await hold(raw, "mails", 2)

    said = await chasqui("group", "remove", queue_name, "mails", *more)

    assert (said.code, said.out, await names()) == (1, "", ["mails"])
    assert said.err == (
        "error: a group must be unused to be removed, found 'mails' (1 consumer, 2 pending) on "
        f"queue '{queue_name}'; run a worker of it until it is idle, or add --force: the jobs "
        "that it holds then run again\n"
    )


async def test_by_force_a_group_goes_and_its_jobs_run_in_the_next_one(
    chasqui, queue, queue_name, raw, running_worker
):
    await queue.add_bulk([{"name": "a", "data": at} for at in range(3)])
    await raw("XGROUP", "CREATE", raw.keys.stream, "old", "0")
    await raw("XREADGROUP", "GROUP", "old", "c", "STREAMS", raw.keys.stream, ">")

    said = await chasqui("group", "remove", queue_name, "old", "--force", "--yes")

    assert said.code == 0
    assert said.out.startswith(f"removed the group old of {queue_name}; the 3 jobs that it held")
    running = await running_worker(noop, group="new")
    await eventually(lambda: running.worker.health().completed == 3)


async def test_a_removal_is_a_document_with_json(chasqui, queue_name, raw):
    await hold(raw, "mails", 2)

    said = await chasqui("group", "remove", queue_name, "mails", "--force", "--yes", "--json")

    assert said.json == {"removed": "mails", "consumers": 1, "pending": 2}


@pytest.mark.parametrize("more", [(), ("--yes",)])
async def test_a_group_that_is_not_there_is_code_1_and_names_the_others(
    chasqui, queue_name, raw, more
):
    await raw("XGROUP", "CREATE", raw.keys.stream, "old", "0", "MKSTREAM")
    await raw("XADD", raw.keys.stream, "*", "d", "x")

    said = await chasqui("group", "remove", queue_name, "odl", *more)

    assert said.code == 1
    assert said.err == f"error: queue '{queue_name}' has no group named 'odl'; groups: 'old'\n"


@pytest.mark.parametrize("group", ["a b; touch x", "-old", "it's"])
async def test_the_command_in_a_refusal_works_as_it_stands(
    chasqui, queue_name, url, raw, names, group
):
    await raw("XGROUP", "CREATE", raw.keys.stream, group, "0", "MKSTREAM")
    await raw("XGROUP", "CREATECONSUMER", raw.keys.stream, group, "c")

    with pytest.raises(GroupConflict) as caught:
        await Worker(queue_name, noop, redis_url=url).run()
    await raw("XGROUP", "DELCONSUMER", raw.keys.stream, group, "c")
    program, *words = shlex.split(str(caught.value).split("`")[1])
    said = await chasqui(*words, stdin=f"{group}\n".encode())

    assert (program, said.code, await names()) == ("chasqui", 0, [])


@pytest.mark.parametrize("group", ["caf\udce9", "a\x1b[2Jb", "", "g" * 129])
@pytest.mark.parametrize("more", [(), ("--yes",)])
async def test_a_name_that_no_group_can_have_is_one_line(chasqui, queue_name, raw, group, more):
    await raw("XADD", raw.keys.stream, "*", "d", "x")

    said = await chasqui("group", "remove", queue_name, group, *more)

    assert (said.code, said.out) in ((1, ""), (2, ""))
    assert said.err.count("\n") == 1
    assert "\x1b" not in said.err


async def test_who_killed_the_last_worker_just_now_hears_how_long_it_counts(
    chasqui, queue_name, raw
):
    await raw("XGROUP", "CREATE", raw.keys.stream, "a", "0", "MKSTREAM")
    await raw("XGROUP", "CREATECONSUMER", raw.keys.stream, "a", "killed")

    said = await chasqui("group", "remove", queue_name, "a", "--yes")

    assert said.code == 1
    assert "stop its workers (a killed one counts for 60 s), or add --force" in said.err
