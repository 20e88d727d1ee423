"""`chasqui repeatable` lists plans as the original does, ends them, runs them, shows the bad."""

from __future__ import annotations

import re

import pytest

EVERY = {"kind": "every", "interval_ms": 60_000}
CRON = {"kind": "cron", "expression": "0 3 * * *", "tz": "Europe/Berlin"}
pytestmark = pytest.mark.takes_turns


async def test_list_shows_the_columns_of_the_original(chasqui, queue, queue_name):
    await queue.upsert_repeatable_job("tick", 1, repeat=EVERY, limit=5)
    await queue.upsert_repeatable_job("night", 1, repeat=CRON, key="nightly")

    said = await chasqui("repeatable", "list", queue_name)

    assert said.out.splitlines()[0].split("  ")[0] == f"repeatable: {queue_name}"
    tick, nightly = said.rows
    assert tick[:4] == ["tick::every:60000", "tick", "every 1 min", "-"]
    assert re.fullmatch(r"in (1 min|5\d(\.\d)? s)", tick[4])
    assert tick[5] == "5"
    assert nightly[:4] == ["nightly", "night", "0 3 * * *", "Europe/Berlin"]
    assert nightly[5] == "-"


async def test_a_plan_that_nobody_fired_is_told_as_late(chasqui, queue, queue_name, raw):
    await queue.upsert_repeatable_job("tick", 1, repeat=EVERY)
    (due_ms,) = [plan.next_fire_ms for plan in await queue.get_repeatable_jobs()]
    await raw("ZADD", raw.keys.repeat, due_ms - 3_700_000, "tick::every:60000")

    (row,) = (await chasqui("repeatable", "list", queue_name)).rows
    (plan,) = (await chasqui("repeatable", "list", queue_name, "--json")).json

    assert row[4] == "1 h late"
    assert plan["next_fire_ms"] == due_ms - 3_700_000


@pytest.mark.parametrize(
    ("words", "said"),
    [(("delayed", "list"), "nothing is delayed"),
     (("repeatable", "quarantined"), "nothing is quarantined")],
    ids=" ".join,
)  # fmt: skip
async def test_an_empty_list_is_said_on_stderr(chasqui, queue, queue_name, words, said):
    await queue.add("a", 1)

    plain = await chasqui(*words, queue_name)
    as_json = await chasqui(*words, queue_name, "--json")

    assert (plain.code, plain.out, plain.err) == (0, "", f"{said}\n")
    assert (as_json.code, as_json.json, as_json.err) == (0, [], "")


async def test_a_queue_without_plans_has_the_empty_row_of_the_original(chasqui, queue, queue_name):
    await queue.add("a", 1)

    plain = await chasqui("repeatable", "list", queue_name)
    as_json = await chasqui("repeatable", "list", queue_name, "--json")

    assert (plain.code, plain.rows, plain.err) == (0, [["(empty)", *"-----"]], "")
    assert (as_json.code, as_json.json) == (0, [])


async def test_json_has_the_dict_form_of_each_plan(chasqui, queue, queue_name):
    await queue.upsert_repeatable_job(
        "night", 1, repeat={"kind": "cron", "expression": "0 3 * * *"}
    )

    (plan,) = (await chasqui("repeatable", "list", queue_name, "--json")).json

    assert plan["pattern"] == {"kind": "cron", "expression": "0 3 * * *"}
    assert plan["key"] == "night::cron:0 3 * * *:UTC"


async def test_a_plan_is_removed_once(chasqui, queue, queue_name):
    await queue.upsert_repeatable_job("tick", 1, repeat=EVERY)

    first = await chasqui("repeatable", "remove", queue_name, "tick::every:60000")
    await queue.upsert_repeatable_job("other", 1, repeat=EVERY)
    second = await chasqui("repeatable", "remove", queue_name, "tick::every:60000", "--json")

    assert (first.code, first.out) == (0, "removed\n")
    assert (second.code, second.json) == (1, {"removed": False})


@pytest.mark.parametrize(("keys", "code", "left"), [(b"n\n", 1, 1), (b"y\n", 0, 0)])
async def test_on_a_terminal_removing_asks_first(terminal, queue, queue_name, keys, code, left):
    await queue.upsert_repeatable_job("tick", 1, repeat=EVERY)

    said = await terminal("repeatable", "remove", queue_name, "tick::every:60000", keys=keys)

    assert said.code == code
    assert len(await queue.get_repeatable_jobs()) == left


async def test_run_adds_one_job_of_the_plan_now(chasqui, queue, queue_name):
    await queue.upsert_repeatable_job("tick", {"n": 1}, repeat=EVERY)

    said = await chasqui("repeatable", "run", queue_name, "tick::every:60000")
    unknown = await chasqui("repeatable", "run", queue_name, "nothing")

    assert (await queue.get_job(said.out.strip())).state == "ready"
    assert unknown.code == 1
    assert unknown.err.startswith("error: key must be the key of a repeatable job")


async def test_quarantined_plans_are_listed_with_their_reason(chasqui, queue, queue_name, raw):
    await queue.upsert_repeatable_job("tick", 1, repeat=EVERY)
    await raw("HSET", raw.keys.repeat_bad, "broken", "not a record")

    said = await chasqui("repeatable", "quarantined", queue_name)
    as_json = await chasqui("repeatable", "quarantined", queue_name, "--json")

    assert said.rows == [["broken", "1970-01-01T00:00:00.000Z", "12", "not written by ChasquiMQ"]]
    assert as_json.json[0]["key"] == "broken"
