"""Each script with each of its commands refused in turn: nothing is lost, doubled or stranded.

Lua has no rollback: a script that a command fails half-way keeps its first half. So every script
either changes nothing when it answers with an error, or does all of its work.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import pytest

from chasquimq.errors import ServerOutOfMemory, StoreError
from store.refused_scenarios import SCENARIOS, Scenario, Stage
from support.raw import Raw
from support.script_commands import commands_of, script_names

LAST = 2**64 - 1
USES = [(name, use) for name, uses in SCENARIOS.items() for use in uses]
REFUSALS = [(name, use, command) for name, use in USES for command in commands_of(name)]
# Commands that undo what a script has done before a failure.
IN_TROUBLE_ONLY = {
    "add": {"xdel"},
    "import_dead": {"xdel"},
    "add_run_rows": {"xdel"},
    "schedule": {"xdel"},
}
# These end what was accepted before, so that a server without memory can drain.
NEED_NO_MEMORY = {
    "ack",
    "bury",
    "complete",
    "hand_back",
    "purge",
    "replay",
    "retry",
    "cancel",
    "cancel_members",
    "drain",
}
ADDING = [(name, use) for name, use in USES if "xadd" in commands_of(name)]


@pytest.fixture
async def stage(raw, url, queue_name):
    """A queue, with a user from whom rights can be taken while it is connected."""
    await raw("ACL", "SETUSER", queue_name, "on", ">canary", "~*", "&*", "+@all")
    parts = urlsplit(url)._replace(netloc=f"{queue_name}:canary@{urlsplit(url).netloc}")
    user = await Raw.open(parts.geturl(), queue_name)
    yield Stage(raw, user)
    await user.close()
    await raw("ACL", "DELUSER", queue_name)


def test_every_script_has_a_scenario():
    assert sorted(SCENARIOS) == script_names()


@pytest.mark.parametrize(("name", "use"), USES)
async def test_what_a_scenario_expects_comes_true_with_all_rights(stage, name, use):
    scenario = await ready(stage, name, use)

    assert_answer(scenario, await scenario.act(stage))

    await assert_done(stage, scenario)


@pytest.mark.parametrize("name", SCENARIOS)
async def test_the_scenarios_of_a_script_reach_all_of_its_commands(stage, raw, name):
    """Otherwise its refusal would prove nothing."""
    reached: set[str] = set()
    for scenario in SCENARIOS[name].values():
        if not await is_known(raw, scenario.needs):
            continue
        await raw("DEL", *await raw("KEYS", "{chasqui:" + raw.keys.queue + "}:*"), "none")
        stage.ids.clear()
        await scenario.arrange(stage)
        reached |= await commands_run(stage, scenario)

    missed = set(commands_of(name)) - reached - IN_TROUBLE_ONLY.get(name, set())
    assert not [command for command in missed if await is_known(raw, command)]


@pytest.mark.parametrize(("name", "use", "command"), REFUSALS)
async def test_a_refused_command_leaves_every_job_in_one_place_and_a_later_try_succeeds(
    stage, raw, queue_name, snapshot, name, use, command
):
    scenario = await ready(stage, name, use)
    before = await snapshot()
    if not await is_known(raw, command):
        pytest.skip(f"this server does not know {command}")
    await raw("ACL", "SETUSER", queue_name, f"-{command}")

    try:
        answer = await scenario.act(stage)
    except StoreError:
        assert await snapshot() == before
        await raw("ACL", "SETUSER", queue_name, "+@all")
        answer = await scenario.act(stage)

    assert_answer(scenario, answer)
    await assert_done(stage, scenario)


@pytest.mark.parametrize(("name", "use"), USES)
async def test_without_memory_a_script_does_all_or_nothing_and_settling_goes_on(
    stage, raw, snapshot, name, use
):
    scenario = await ready(stage, name, use)
    before = await snapshot()
    await raw("CONFIG", "SET", "maxmemory", 1)

    try:
        answer = await scenario.act(stage)
    except ServerOutOfMemory:
        assert name not in NEED_NO_MEMORY
        assert await snapshot() == before
        await raw("CONFIG", "SET", "maxmemory", 0)
        answer = await scenario.act(stage)
    finally:
        await raw("CONFIG", "SET", "maxmemory", 0)

    assert_answer(scenario, answer)
    await assert_done(stage, scenario)


@pytest.mark.parametrize("room", [0, 1], ids=["no room", "room for one"])
@pytest.mark.parametrize(("name", "use"), ADDING)
async def test_a_stream_at_the_end_of_its_ids_loses_doubles_and_strands_nothing(
    stage, name, use, room
):
    scenario = await ready(stage, name, use)
    existing = {job for job, _ in await stage.places()}
    for key in scenario.xadd_keys:
        await exhaust(stage.raw, getattr(stage.keys, key), room)

    try:
        await scenario.act(stage)
    except StoreError:
        await assert_once_at_most(stage, scenario, existing)
        for key in scenario.xadd_keys:
            await renew(stage.raw, getattr(stage.keys, key))
        await scenario.act(stage)

    await assert_done(stage, scenario, counts_only=True)


async def ready(stage: Stage, name: str, use: str) -> Scenario:
    scenario = SCENARIOS[name][use]
    if not await is_known(stage.raw, scenario.needs):
        pytest.skip(f"this server does not know {scenario.needs}")
    await scenario.arrange(stage)
    return scenario


async def commands_run(stage: Stage, scenario: Scenario) -> set[str]:
    before = await call_counts(stage.raw)
    await scenario.act(stage)
    after = await call_counts(stage.raw)
    return {command for command, count in after.items() if count > before.get(command, 0)}


async def call_counts(raw: Raw) -> dict[str, int]:
    stats = (await raw("INFO", "commandstats")).decode()
    return {name: int(count) for name, count in re.findall(r"cmdstat_([a-z|]+):calls=(\d+)", stats)}


async def is_known(raw: Raw, command: str) -> bool:
    return await raw("COMMAND", "INFO", command) != [None]


def assert_answer(scenario: Scenario, answer: object) -> None:
    assert scenario.answer is None or answer == scenario.answer


async def assert_done(stage: Stage, scenario: Scenario, *, counts_only: bool = False) -> None:
    for job_id, ends in scenario.ends.items():
        places = await stage.job_places(job_id)
        assert len(places) == (1 if ends else 0), (job_id, places)
        assert set(places) <= ends
    if not counts_only:
        await scenario.check(stage)


async def assert_once_at_most(stage: Stage, scenario: Scenario, existing: set[str]) -> None:
    """What was there is there once; what is new is there once, or without a mark that it is."""
    for job_id in scenario.ends:
        places = await stage.job_places(job_id)
        assert "stranded" not in places
        assert len(places) == 1 if job_id in existing else len(places) <= 1
        has_mark = await stage.raw("EXISTS", stage.keys.uniq(job_id), stage.keys.dlid(job_id))
        assert places or not has_mark


async def exhaust(raw: Raw, key: str, room: int) -> None:
    """Leave so many ids to a stream."""
    if not await raw("EXISTS", key):
        await raw("XDEL", key, await raw("XADD", key, "*", "a", "b"))
    await raw("XSETID", key, f"{LAST}-{LAST - room}")


async def renew(raw: Raw, key: str) -> None:
    """Move what a stream holds to a new one, as an operator would."""
    entries = await raw.entries(key)
    await raw("DEL", key)
    for _, fields in entries:
        await raw("XADD", key, "*", *[part for pair in fields.items() for part in pair])
