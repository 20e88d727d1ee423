"""Ids of your own: one job for each within the window, across queues, processes and restarts."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

import chasquimq
from chasquimq import Queue
from chasquimq.errors import IdConflict
from chasquimq.settings import AbilitySettings
from chasquimq.wire.envelope import decode_envelope
from support.waiting import eventually

SRC = Path(chasquimq.__file__).parents[1]
RACERS = 8
IDS = 200

RACER = """
import asyncio, sys
from chasquimq import Queue

async def main(url, name, ids):
    async with Queue(name, redis_url=url) as queue:
        await queue.counts()
        print("ready", flush=True)
        sys.stdin.readline()
        jobs = await asyncio.gather(
            *(queue.add("n", i, job_id=f"job-{i}") for i in range(0, ids, 2)),
        )
        jobs += await queue.add_bulk(
            [{"name": "n", "data": i, "job_id": f"job-{i}"} for i in range(1, ids, 2)]
        )
        print(*(job.id for job in jobs if not job.is_duplicate))

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


@pytest.fixture(params=["as probed", "by script"])
async def adding(request, url, queue_name):
    abilities = AbilitySettings(idempotent_add=None if request.param == "as probed" else False)
    async with Queue(queue_name, redis_url=url, abilities=abilities) as queue:
        yield queue


@pytest.fixture
async def another(url, queue_name):
    """A second Queue object, as another process would have."""
    async with Queue(queue_name, redis_url=url) as queue:
        yield queue


async def ids(raw) -> list[str]:
    return [decode_envelope(row[b"d"]).id for _, row in await raw.entries(raw.keys.stream)]


async def test_the_first_job_of_an_id_is_kept_and_the_second_says_so(adding, raw):
    first = await adding.add("n", 1, job_id="own")
    second = await adding.add("n", 1, job_id="own")

    assert (first.is_duplicate, second.is_duplicate) == (False, True)
    assert await ids(raw) == ["own"]


async def test_another_payload_under_a_taken_id_is_kept_out_silently(adding, raw):
    await adding.add("n", 1, job_id="own")

    other = await adding.add("n", 2, job_id="own")

    assert other.is_duplicate
    assert await raw("XLEN", raw.keys.stream) == 1


@pytest.mark.parametrize(("name", "data"), [("n", 2), ("other", 1)], ids=["payload", "name"])
async def test_a_conflict_is_raised_where_asked_for(adding, raw, name, data):
    await adding.add("n", 1, job_id="own")

    with pytest.raises(IdConflict) as caught:
        await adding.add(name, data, job_id="own", on_conflict="raise")

    assert caught.value.job_ids == ["own"]
    assert str(caught.value).endswith("'own'; choose another id, or pass on_conflict=\"keep\"")
    assert await raw("XLEN", raw.keys.stream) == 1


async def test_the_same_job_again_is_no_conflict(adding):
    await adding.add("n", {"a": 1}, job_id="own")

    again = await adding.add("n", {"a": 1}, job_id="own", on_conflict="raise")

    assert again.is_duplicate


async def test_an_id_is_unique_across_queue_objects(adding, another, raw):
    await adding.add("n", 1, job_id="own")

    assert (await another.add_unique("n", 1, job_id="own")).is_duplicate
    assert await ids(raw) == ["own"]


async def test_the_same_id_in_another_queue_is_another_job(adding, url, raw):
    await adding.add("n", 1, job_id="own")

    async with Queue(f"{adding.name}-b", redis_url=url) as other:
        assert not (await other.add("n", 1, job_id="own")).is_duplicate


async def test_an_id_may_be_used_again_when_its_window_is_over(adding, raw):
    await adding.add("n", 1, job_id="own", unique_for_ms=1)

    async def is_forgotten():
        return not await raw("EXISTS", raw.keys.uniq("own"))

    await eventually(is_forgotten)
    assert not (await adding.add("n", 1, job_id="own")).is_duplicate
    assert await ids(raw) == ["own", "own"]


async def test_the_window_is_an_hour_unless_told_otherwise(adding, raw, url):
    await adding.add("n", 1, job_id="hour")
    await adding.add("n", 1, job_id="minute", unique_for_ms=60_000)
    async with Queue(adding.name, redis_url=url, unique_for_ms=120_000) as other:
        await other.add("n", 1, job_id="two")

    left_ms = [await raw("PTTL", raw.keys.uniq(name)) for name in ("hour", "minute", "two")]
    assert [round(ms / 1000) for ms in left_ms] == pytest.approx([3_600, 60, 120], abs=5)


async def test_an_id_stays_unique_after_its_job_has_run(adding, running_worker, raw):
    runs = []

    async def handler(job) -> None:
        runs.append(job.id)

    await running_worker(handler)
    await adding.add("n", 1, job_id="own")
    await eventually(lambda: runs)

    again = await adding.add("n", 1, job_id="own")

    assert again.is_duplicate
    await adding.add("n", 1, job_id="last")
    await eventually(lambda: "last" in runs)
    assert runs == ["own", "last"]


async def test_a_bulk_adds_each_repeated_id_once(adding, raw):
    await adding.add("n", 0, job_id="a")

    jobs = await adding.add_bulk(
        [{"name": "n", "data": 0, "job_id": job_id} for job_id in ("a", "b", "b", "c", "a")]
        + [{"name": "n", "data": 0}] * 2
    )

    assert [job.is_duplicate for job in jobs] == [True, False, True, False, True, False, False]
    assert (await ids(raw))[:3] == ["a", "b", "c"]
    assert len(await ids(raw)) == 5


async def test_a_bulk_with_conflicts_adds_the_others_and_names_the_taken(adding, raw):
    await adding.add("n", 0, job_id="a")

    with pytest.raises(IdConflict) as caught:
        await adding.add_bulk(
            [{"name": "n", "data": i, "job_id": job_id} for i, job_id in enumerate("bac", 1)],
            on_conflict="raise",
        )

    assert caught.value.job_ids == ["a"]
    assert await ids(raw) == ["a", "b", "c"]


async def test_a_delayed_job_and_a_ready_one_share_their_ids(adding, raw):
    await adding.add("n", 1, job_id="own", delay_ms=60_000)

    assert (await adding.add("n", 1, job_id="own")).is_duplicate
    assert (await adding.counts()).backlog == 1


@pytest.mark.parametrize(
    "job_id", ["a/b:c", "ünïcödé-🪢", "x" * 256, " padded ", "{curly}", "*?[]", "line\nbreak"]
)
async def test_ids_may_be_any_text_that_is_not_blank(adding, raw, job_id):
    first = await adding.add("n", 1, job_id=job_id)
    again = await adding.add("n", 1, job_id=job_id)

    assert (first.id, first.is_duplicate, again.is_duplicate) == (job_id, False, True)
    assert await ids(raw) == [job_id]


async def test_concurrent_adds_of_one_id_add_one_job(adding, another, raw):
    jobs = await asyncio.gather(
        *(queue.add("n", 1, job_id="own") for _ in range(50) for queue in (adding, another))
    )

    assert [job.is_duplicate for job in jobs].count(False) == 1
    assert await ids(raw) == ["own"]


@pytest.fixture
def racers(url, queue_name):
    """Processes that stand ready to add the same ids."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, url, queue_name, str(IDS)],
            env={"PYTHONPATH": str(SRC)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(RACERS)
    ]
    assert [racer.stdout.readline() for racer in started] == ["ready\n"] * RACERS
    yield started
    for racer in started:
        racer.kill()
        racer.communicate()


def test_processes_that_race_for_the_same_ids_add_each_job_once(racers, url, queue_name):
    for racer in racers:
        racer.stdin.write("go\n")
        racer.stdin.flush()

    won = [racer.communicate(timeout=30)[0].split() for racer in racers]
    assert {racer.returncode for racer in racers} == {0}
    assert sorted(job_id for ids in won for job_id in ids) == sorted(f"job-{i}" for i in range(IDS))
    assert asyncio.run(stream_ids(url, queue_name)) == {f"job-{i}": 1 for i in range(IDS)}


async def stream_ids(url, queue_name) -> dict[str, int]:
    from support.raw import Raw

    raw = await Raw.open(url, queue_name)
    found = await ids(raw)
    await raw.close()
    return {job_id: found.count(job_id) for job_id in found}
