"""Redelivered jobs: a run of one of them may have killed its process, so they start with care."""

from __future__ import annotations

import asyncio
import time

import pytest

from chasquimq import UnrecoverableError
from chasquimq.engine.delivery_count import PROVED_S
from support.processes import WorkerFleet
from support.waiting import eventually, patience

LEASE_MS = 1_000


class Gated:
    """A handler that notes what runs, and lets a job end when the test says so."""

    def __init__(self) -> None:
        self.running: dict[object, asyncio.Event] = {}
        self.started: list[object] = []
        self.together: list[set[object]] = []
        self.runs: dict[object, int] = {}
        self.is_open = False

    async def __call__(self, job) -> None:
        gate = self.running[job.data] = asyncio.Event()
        self.started.append(job.data)
        self.runs[job.data] = job.run_number
        self.together.append(set(self.running))
        if not self.is_open:
            await gate.wait()
        del self.running[job.data]

    def end(self, data: object) -> None:
        self.running[data].set()

    def end_all(self) -> None:
        """Let everything end, and what starts later too."""
        self.is_open = True
        for gate in self.running.values():
            gate.set()


@pytest.fixture
def redelivered(queue, raw):
    """Adds jobs that a consumer took so many times, and that nobody holds any more."""

    async def add(*values: object, earlier: int = 1, idle_ms: int = 3_600_000, **options) -> None:
        key = raw.keys.stream
        await raw("XGROUP", "CREATE", key, "default", "$", "MKSTREAM")
        await queue.add_bulk([{"name": "n", "data": value, **options} for value in values])
        (row,) = await raw("XREADGROUP", "GROUP", "default", "dead", "STREAMS", key, ">")
        for entry_id, _ in row[1]:
            await raw(
                "XCLAIM", key, "default", "dead", 0, entry_id,
                "IDLE", idle_ms, "RETRYCOUNT", earlier, "JUSTID",
            )  # fmt: skip

    return add


async def add(queue, *values: object) -> None:
    await queue.add_bulk([{"name": "n", "data": value} for value in values])


async def charges(raw) -> list[int]:
    return sorted(row[3] for row in await raw.pending())


def are(ask, wanted):
    async def is_so() -> bool:
        return await ask() == wanted

    return is_so


async def test_redelivered_jobs_run_one_at_a_time_beside_the_others(
    queue, running_worker, redelivered
):
    gated = Gated()
    await redelivered("s1", "s2", "s3")
    await running_worker(gated, concurrency=4)
    await eventually(lambda: gated.started == ["s1"])

    await add(queue, "n1", "n2", "n3", "n4")
    await eventually(lambda: set(gated.running) == {"s1", "n1", "n2", "n3"})
    gated.end("n1")
    await eventually(lambda: set(gated.running) == {"s1", "n2", "n3", "n4"})
    gated.end("s1")
    await eventually(lambda: "s2" in gated.running)
    gated.end("s2")
    await eventually(lambda: "s3" in gated.running)

    suspects = {"s1", "s2", "s3"}
    assert max(len(one & suspects) for one in gated.together) == 1
    gated.end_all()


async def test_a_job_on_its_last_attempt_runs_alone(queue, running_worker, redelivered):
    gated = Gated()
    await redelivered("last", earlier=2, idle_ms=0)
    await add(queue, "n1", "n2")
    running = await running_worker(gated, concurrency=4, max_attempts=3, claim_min_idle_ms=LEASE_MS)
    await eventually(lambda: set(gated.running) == {"n1", "n2"})
    await eventually(lambda: running.worker.health().waiting == 1, what="the suspect")
    await add(queue, "n3", "n4")
    await eventually(lambda: running.worker.health().waiting == 3)

    gated.end("n1")
    await asyncio.sleep(0.2)
    assert gated.started == ["n1", "n2"]
    gated.end("n2")
    await eventually(lambda: "last" in gated.running)
    await asyncio.sleep(0.2)
    assert set(gated.running) == {"last"}

    gated.end("last")
    await eventually(lambda: set(gated.running) == {"n3", "n4"})
    assert gated.runs["last"] == 3
    gated.end_all()


async def test_a_run_that_lasts_is_proved_and_holds_nobody_back_any_more(
    queue, running_worker, redelivered
):
    gated = Gated()
    await redelivered("first", "second", earlier=1)
    await running_worker(gated, concurrency=4, max_attempts=2)
    await eventually(lambda: gated.started == ["first"])
    await add(queue, "n1")
    begun_s = time.monotonic()

    await eventually(lambda: "n1" in gated.running, within_s=PROVED_S + 5 * patience())
    assert time.monotonic() - begun_s > PROVED_S / 2
    await eventually(lambda: "second" in gated.running, within_s=4 * PROVED_S * patience())

    assert gated.together[1] == {"first", "n1"}
    gated.end_all()


async def test_long_suspects_all_start_within_a_minute(running_worker, redelivered):
    """Each that lasts lets the next one start sooner."""
    gated = Gated()
    await redelivered(*range(6))
    await running_worker(gated, concurrency=10)
    begun_s = time.monotonic()

    await eventually(lambda: len(gated.running) == 6, within_s=20 * patience())
    took_s = time.monotonic() - begun_s

    assert PROVED_S * 1.8 < took_s < PROVED_S * 2.5 * patience()
    gated.end_all()


async def test_suspects_that_take_a_few_seconds_do_not_queue_up_for_their_whole_length(
    running_worker, redelivered
):
    """Each that ends lets the next one start sooner, as each that lasts does."""
    started = []
    await redelivered(*range(6))

    async def handler(job):
        started.append(job.data)
        await asyncio.sleep(PROVED_S * 0.6)

    begun_s = time.monotonic()
    await running_worker(handler, concurrency=10)
    await eventually(lambda: len(started) == 6, within_s=4 * PROVED_S * patience())

    assert time.monotonic() - begun_s < PROVED_S * 2 * patience()


async def test_suspects_that_wait_in_vain_are_taken_by_another_worker_uncharged(
    running_worker, redelivered, raw
):
    busy, free = Gated(), Gated()
    await redelivered("s1", "s2", "s3", "s4")
    await running_worker(busy, concurrency=4)
    await eventually(lambda: busy.started == ["s1"])
    await eventually(are(lambda: charges(raw), [1, 1, 1, 2]), what="one charged start")

    await running_worker(free, concurrency=4)
    await eventually(lambda: free.running, within_s=3 * patience())
    await eventually(are(lambda: charges(raw), [1, 1, 2, 2]), what="two charged starts")
    free.end_all()
    await eventually(lambda: len(free.started) > 1, within_s=5 * patience())

    assert set(free.runs.values()) == {2}
    busy.end_all()
    free.end_all()


async def test_a_worker_with_no_place_to_run_gives_its_suspect_to_another(
    queue, running_worker, redelivered
):
    full, free = Gated(), Gated()
    await redelivered("suspect", idle_ms=0)
    await add(queue, "n1")
    await running_worker(full, concurrency=1, claim_min_idle_ms=LEASE_MS)
    await eventually(lambda: "n1" in full.running)
    await asyncio.sleep(LEASE_MS / 1000 + 0.2)

    await running_worker(free, concurrency=1, claim_min_idle_ms=LEASE_MS)

    await eventually(lambda: "suspect" in free.running, within_s=10 * patience())
    full.end_all()
    free.end_all()


async def test_a_killed_worker_charges_no_suspect_that_waited(
    url, queue_name, raw, redelivered, tmp_path
):
    await redelivered(*[60] * 8)
    fleet = WorkerFleet(url, queue_name, tmp_path)
    try:
        victim = await fleet.start("wait", concurrency=8, claim_min_idle_ms=LEASE_MS)
        await eventually(are(lambda: charges(raw), [1] * 7 + [2]), what="one charged start")
        victim.kill()
    finally:
        fleet.close()

    assert await charges(raw) == [1] * 7 + [2]


async def test_handlers_that_never_wait_do_not_keep_a_suspect_from_its_turn(
    queue, running_worker, redelivered
):
    seen = []
    await redelivered("suspect", idle_ms=0)
    await add(queue, *["n"] * 20_000)

    async def never_waits(job):
        seen.append(job.data)
        time.sleep(0.0005)  # noqa: ASYNC251 - the loop must get no pause

    await running_worker(never_waits, concurrency=1, claim_min_idle_ms=LEASE_MS)

    await eventually(lambda: "suspect" in seen, within_s=5 * patience())
    assert len(seen) < 20_000


async def test_jobs_that_were_handed_back_are_no_suspects(queue, running_worker):
    first, second = Gated(), Gated()
    leaver = await running_worker(first, concurrency=1, read_count=5)
    await add(queue, *range(5))
    await eventually(lambda: leaver.worker.health().waiting == 4)
    stopping = asyncio.create_task(leaver.stop())
    await running_worker(second, concurrency=4)

    await eventually(lambda: len(second.running) == 4)
    first.end_all()
    second.end_all()
    await stopping


async def test_a_worker_with_suspects_reads_new_jobs_at_its_usual_pace(
    queue, running_worker, redelivered
):
    """Suspects that wait take no room, and are not claimed again and again."""
    gated, done = Gated(), []
    await redelivered(*[f"s{at}" for at in range(200)])

    async def handler(job):
        if str(job.data).startswith("s"):
            await gated(job)
        else:
            done.append(job.data)

    await running_worker(handler, concurrency=4)
    await eventually(lambda: gated.running)
    await add(queue, *range(3_000))

    await eventually(lambda: len(done) == 3_000, within_s=3 * patience())
    assert len(gated.started) == 1
    gated.end_all()


@pytest.mark.parametrize("earlier", [1, 2], ids=["any attempt", "last attempt"])
async def test_a_suspect_whose_end_is_refused_holds_the_others_back_for_seconds_only(
    queue, running_worker, redelivered, raw, earlier
):
    """The worker goes on with its other jobs while the server takes no burial."""
    seen = []
    await redelivered("dies", "second", earlier=earlier)
    await raw("SET", raw.keys.dlq, "no stream")

    async def handler(job):
        seen.append(job.data)
        if job.data == "dies":
            raise UnrecoverableError("it will never work")

    running = await running_worker(handler, concurrency=4, max_attempts=3)
    await eventually(lambda: seen == ["dies"])
    await add(queue, "n1")

    within_s = 4 * PROVED_S * patience()
    await eventually(lambda: {"n1", "second"} <= set(seen), within_s=within_s)

    assert running.worker.health().buried == 0
    await raw("DEL", raw.keys.dlq)
    await eventually(lambda: running.worker.health().buried == 1)
    assert sorted(seen) == ["dies", "n1", "second"]
