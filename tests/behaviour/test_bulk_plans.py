"""A bulk may hold plans beside jobs: all are checked before anything is written."""

from __future__ import annotations

import pytest

from chasquimq import MissedFiresPolicy, RepeatPattern
from chasquimq.errors import ChasquiError, LimitExceeded, SettingsError

HOURLY = RepeatPattern.every(3_600_000)
JOB = {"name": "mail", "data": 1}
PLAN = {"name": "report", "data": {"of": "day"}, "repeat": HOURLY}


async def test_jobs_are_added_and_plans_are_planned_in_their_order(queue, raw):
    first, plan, last = await queue.add_bulk([JOB, PLAN, {**JOB, "job_id": "own"}])

    (planned,) = await queue.get_repeatable_jobs()
    assert (plan.id, plan.name, plan.data) == (planned.key, "report", {"of": "day"})
    assert (first.name, last.id, last.is_duplicate) == ("mail", "own", False)
    assert (await queue.counts()).ready == 2
    assert await raw("ZCARD", raw.keys.repeat) == 1


async def test_a_bulk_of_plans_alone_adds_no_job(queue):
    plans = await queue.add_bulk([PLAN, {**PLAN, "repeat": HOURLY.to_dict(), "name": "other"}])

    assert {meta.key for meta in await queue.get_repeatable_jobs()} == {plan.id for plan in plans}
    assert (await queue.counts()).ready == 0


async def test_the_same_plan_again_is_a_duplicate(queue):
    await queue.add_bulk([PLAN])

    again, other = await queue.add_bulk([PLAN, {**PLAN, "name": "other"}])

    assert (again.is_duplicate, other.is_duplicate) == (True, False)


async def test_a_plan_of_a_bulk_keeps_attempts_backoff_and_policy(queue):
    options = {"attempts": 3, "backoff": 50, "missed_fires": MissedFiresPolicy.fire_once()}

    await queue.add_bulk([{**PLAN, **options}])
    alone = await queue.upsert_repeatable_job(PLAN["name"], PLAN["data"], repeat=HOURLY, **options)

    assert alone.is_duplicate, "the bulk planned exactly this"


async def test_what_repeats_no_more_than_none_is_a_plain_job(queue):
    await queue.add_bulk([{**JOB, "repeat": None, "missed_fires": None}])

    assert (await queue.counts()).ready == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"repeat": "daily"}, "repeat must be a RepeatPattern or its dict form, got 'daily'"),
        ({"repeat": RepeatPattern.cron("61 * * * *")}, "61"),
        ({"repeat": RepeatPattern.cron("0 0 30 2 *")}, "0 0 30 2 *"),
        ({"repeat": None, "missed_fires": MissedFiresPolicy.skip()}, "together with repeat"),
        ({"job_id": "own"}, "job_id must be left out where a job repeats"),
        ({"delay_ms": 5}, "delay_ms must be left out where a job repeats"),
        ({"timeout_ms": 5}, "timeout_ms must be left out where a job repeats"),
        ({"attempts": 0}, "attempts must be between 1"),
        ({"data": {1, 2}}, "data is a set"),
        ({"name": 5}, "name must be"),
        ({"retries": 3}, "a job must be made of attempts, backoff, data,"),
    ],
    ids=lambda value: str(value)[:50] if isinstance(value, dict) else "",
)
async def test_a_bad_plan_refuses_the_whole_bulk_and_is_named(queue, raw, change, said):
    with pytest.raises(ChasquiError) as caught:
        await queue.add_bulk([JOB, {**PLAN, **change}, PLAN])

    assert str(caught.value).startswith("jobs[1]")
    assert said in str(caught.value)
    assert await raw("KEYS", f"{raw.keys.stream.removesuffix('stream')}*") == []


async def test_a_bad_job_beside_a_plan_leaves_no_plan(queue, raw):
    with pytest.raises(LimitExceeded, match=r"^jobs\[1\]: "):
        await queue.add_bulk([PLAN, {**JOB, "attempts": 0}])

    assert await raw("EXISTS", raw.keys.repeat, raw.keys.stream) == 0


async def test_a_plan_without_a_name_or_data_is_refused(queue):
    with pytest.raises(SettingsError, match=r"jobs\[0\] must be a mapping with 'name'"):
        await queue.add_bulk([{"data": 1, "repeat": HOURLY}])
    with pytest.raises(SettingsError, match=r"jobs\[0\] must be a mapping with 'data'"):
        await queue.add_bulk([{"name": "n", "repeat": HOURLY}])


async def test_plans_that_could_not_be_written_are_named_by_their_keys(queue, raw):
    await raw("SET", raw.keys.repeat, "no set")

    with pytest.raises(ChasquiError) as caught:
        await queue.add_bulk([JOB, PLAN, {**PLAN, "name": "other"}])

    assert list(caught.value.job_ids) == ["report::every:3600000", "other::every:3600000"]
    assert (await raw("XLEN", raw.keys.stream)) == 1
