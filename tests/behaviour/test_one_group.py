"""One group consumes a stream: a worker of a second one is refused before it reads anything."""

from __future__ import annotations

import asyncio
import re
from urllib.parse import urlsplit

import pytest

from chasquimq import Worker
from chasquimq.errors import GroupConflict
from chasquimq.model.snapshot import SILENT_MS_MAX
from chasquimq.settings import LeaseSettings, ReadSettings
from chasquimq.store.consumer import store as consuming
from support.waiting import eventually
from support.workers import RunningWorker


async def noop(job):
    return


@pytest.fixture
def beginning(queue_name, url):
    """A worker of that group which begins to run."""

    def begin(group: str) -> RunningWorker:
        return RunningWorker(Worker(queue_name, noop, redis_url=url, group=group))

    return begin


async def groups(raw) -> dict[str, int]:
    """How many consumers each group has."""
    rows = await raw("XINFO", "GROUPS", raw.keys.stream)
    found = [dict(zip(row[::2], row[1::2], strict=True)) for row in rows]
    return {one[b"name"].decode(): one[b"consumers"] for one in found}


async def test_a_worker_of_a_second_group_is_refused_with_a_way_out(
    queue_name, raw, running_worker, beginning
):
    await running_worker(noop, group="first")

    with pytest.raises(GroupConflict) as caught:
        await asyncio.wait_for(beginning("second").task, 10)

    said = str(caught.value)
    assert said.startswith(
        f"one group must consume queue '{queue_name}', found 'first' (1 consumer"
    )
    assert "group='first'" in said
    assert said.endswith(f"remove it with `chasqui group remove {queue_name} first`")
    assert (caught.value.queue, caught.value.group) == (queue_name, "second")
    assert caught.value.found == ["first"]
    assert "second" not in await groups(raw)


async def test_a_group_whose_last_worker_was_killed_long_ago_is_in_nobodys_way(
    queue, raw, beginning, running_worker, monkeypatch
):
    monkeypatch.setattr(consuming, "SILENT_MS_MAX", 500)
    await raw("XGROUP", "CREATE", raw.keys.stream, "killed", "0", "MKSTREAM")
    await raw("XREADGROUP", "GROUP", "killed", "c", "STREAMS", raw.keys.stream, ">")

    with pytest.raises(GroupConflict):
        await asyncio.wait_for(beginning("next").task, 10)
    await eventually(lambda: _silent_ms(raw, "killed", 500), within_s=10)
    running = await running_worker(noop, group="next")
    await queue.add("n", 1)

    await eventually(lambda: running.worker.health().completed == 1)


async def test_jobs_that_a_killed_worker_held_keep_its_group_in_use_for_ever(
    queue, raw, beginning, monkeypatch
):
    monkeypatch.setattr(consuming, "SILENT_MS_MAX", 1)
    await queue.add("n", 1)
    await raw("XGROUP", "CREATE", raw.keys.stream, "killed", "0", "MKSTREAM")
    await raw("XREADGROUP", "GROUP", "killed", "c", "STREAMS", raw.keys.stream, ">")
    await eventually(lambda: _silent_ms(raw, "killed", 1), within_s=10)

    with pytest.raises(GroupConflict, match="run a worker of it until it is idle, then remove it"):
        await asyncio.wait_for(beginning("next").task, 10)


@pytest.mark.parametrize(
    "options",
    [
        {"read_block_ms": 3_600_000, "claim_min_idle_ms": 7_200_000},
        {
            "read": ReadSettings(block_ms=3_600_000),
            "lease": LeaseSettings(lease_ms=7_200_000),
        },
    ],
    ids=["keywords", "groups"],
)
async def test_no_setting_lets_an_idle_worker_be_silent_for_as_long_as_a_dead_one(
    url, queue_name, running_worker, options
):
    reader, writer = await asyncio.open_unix_connection(urlsplit(url).path)
    writer.write(b"MONITOR\r\n")
    await running_worker(noop, **options)

    async with asyncio.timeout(20):
        idle_read = re.compile(rb'"BLOCK" "(\d+)".*%b.*:wake"' % queue_name.encode())
        while not (found := idle_read.search(await reader.readline())):
            pass
    writer.close()

    assert int(found[1]) <= SILENT_MS_MAX / 3


async def _silent_ms(raw, group: str, ms: int) -> bool:
    ((*facts,),) = await raw("XINFO", "CONSUMERS", raw.keys.stream, group)
    return dict(zip(facts[::2], facts[1::2], strict=True))[b"idle"] > ms


async def test_jobs_end_once_although_two_groups_want_them(queue, raw, running_worker, beginning):
    for at in range(100):
        await queue.add("n", at)
    first = await running_worker(noop, group="first")

    with pytest.raises(GroupConflict):
        await asyncio.wait_for(beginning("second").task, 10)
    await eventually(lambda: first.worker.health().completed == 100, what="all jobs")
    assert await raw("XLEN", raw.keys.dlq) == 0


async def test_of_two_groups_that_start_at_once_one_is_refused_and_leaves_nothing(raw, beginning):
    for _ in range(10):
        both = [beginning("left"), beginning("right")]
        await eventually(lambda both=both: any(one.task.done() for one in both))
        (winner,) = [one for one in both if not one.task.done()]
        await winner.until_consuming()

        assert list(await groups(raw)) == [winner.worker.group]

        await winner.stop()
        await asyncio.gather(*(one.task for one in both), return_exceptions=True)
        await raw("DEL", raw.keys.stream)


async def test_a_group_that_nobody_uses_is_in_nobodys_way(queue, raw, running_worker, beginning):
    await queue.add("n", 1)
    await raw("XGROUP", "CREATE", raw.keys.stream, "unused", "0")
    running = await running_worker(noop, group="mine")

    await eventually(lambda: running.worker.health().completed == 1)
    with pytest.raises(GroupConflict):
        await asyncio.wait_for(beginning("unused").task, 10)


async def test_workers_may_change_their_group_when_the_last_of_the_old_one_has_ended(
    queue, running_worker
):
    old = await running_worker(noop, group="old")
    await queue.add("n", 1)
    await eventually(lambda: old.worker.health().completed == 1)
    await old.stop()
    await queue.add("n", 2)

    new = await running_worker(noop, group="new")

    await eventually(lambda: new.worker.health().completed == 1)


async def test_jobs_that_a_stopped_worker_gave_back_keep_their_group(
    queue, raw, running_worker, beginning
):
    gate = asyncio.Event()

    async def wait(job):
        await gate.wait()

    await queue.add_bulk([{"name": "n", "data": at} for at in range(3)])
    old = await running_worker(wait, group="old", concurrency=1)
    await eventually(lambda: old.worker.health().running == 1)
    await old.cut_short()

    with pytest.raises(GroupConflict, match=r"found .old. \(0 consumers, [23] pending\)"):
        await asyncio.wait_for(beginning("new").task, 10)
    # The place for such jobs stays when they are done, and means nobody.
    again = await running_worker(noop, group="old")
    await eventually(lambda: again.worker.health().completed == 3)
    await again.stop()
    assert (await groups(raw))["old"] == 1
    await running_worker(noop, group="new")


async def test_a_worker_whose_group_was_deleted_does_not_join_beside_another(
    queue, raw, running_worker
):
    mine = await running_worker(noop, group="mine")
    await raw("XGROUP", "CREATE", raw.keys.stream, "other", "0")
    await raw("XREADGROUP", "GROUP", "other", "c", "STREAMS", raw.keys.stream, ">")
    await raw("XGROUP", "DESTROY", raw.keys.stream, "mine")

    await eventually(
        lambda: "reader" in mine.worker.health().loops_down,
        within_s=15,
        what="a reader that says so",
    )

    assert "found 'other'" in mine.worker.health().loops_down["reader"]
    assert not mine.worker.health().is_ok
    assert "mine" not in await groups(raw)
    # It goes on when the other group is gone.
    await raw("XGROUP", "DESTROY", raw.keys.stream, "other")
    await queue.add("n", 1)
    await eventually(lambda: mine.worker.health().completed == 1)
