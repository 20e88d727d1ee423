"""One group consumes a stream: a worker of a second one is refused before it reads anything."""

from __future__ import annotations

import asyncio

import pytest

from chasquimq import Worker
from chasquimq.errors import GroupConflict
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
    assert f"XGROUP DESTROY {raw.keys.stream} first" in said
    assert (caught.value.queue, caught.value.group) == (queue_name, "second")
    assert caught.value.found == ["first"]
    assert "second" not in await groups(raw)


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
