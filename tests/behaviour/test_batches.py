"""Handlers that take many jobs at once: how they gather, and what becomes of each job."""

from __future__ import annotations

import asyncio
import os
import threading
import time

import pyarrow as pa
import pytest

from chasquimq import Batch, Queue, UnrecoverableError, Worker, current_job
from chasquimq.errors import SettingsError
from support.waiting import eventually


async def add(queue: Queue, *values: object) -> list:
    return await queue.add_bulk([{"name": "score", "data": value} for value in values])


def empties(queue: Queue):
    async def is_empty() -> bool:
        counts = await queue.counts()
        return counts.ready + counts.running + counts.delayed == 0

    return is_empty


async def test_a_full_batch_runs_at_once_and_the_rest_after_a_while(queue, running_worker):
    sizes = []

    async def handler(jobs):
        sizes.append([job.data for job in jobs])

    await add(queue, *range(7))
    await running_worker(handler, batch=(3, 100))

    await eventually(lambda: sum(map(len, sizes)) == 7)
    assert sizes == [[0, 1, 2], [3, 4, 5], [6]]
    await eventually(empties(queue))


async def test_each_job_has_an_outcome_of_its_own(queue, running_worker):
    async def handler(jobs):
        return [
            UnrecoverableError("odd") if job.data % 2 else job.data * 10 for job in jobs
        ]  # fmt: skip

    jobs = await add(queue, *range(6))
    await running_worker(handler, batch=(6, 50), store_results=True)

    done = [await job.wait_for_result(timeout=10) for job in jobs[::2]]
    assert done == [0, 20, 40]
    dead = await eventually(lambda: letters(queue, 3))
    assert sorted(letter["job_id"] for letter in dead) == sorted(job.id for job in jobs[1::2])


async def letters(queue: Queue, count: int):
    found = await queue.peek_dlq(count + 1)
    return found if len(found) == count else None


async def test_a_handler_that_raises_fails_every_job_of_the_batch(queue, running_worker):
    async def handler(jobs):
        raise UnrecoverableError(f"{len(jobs)} jobs")

    await add(queue, 1, 2, 3)
    await running_worker(handler, batch=(3, 50))

    dead = await eventually(lambda: letters(queue, 3))
    assert {letter["error"] for letter in dead} == {"UnrecoverableError: 3 jobs"}


@pytest.mark.parametrize("answer", [[1], "abc", 5, {}])
async def test_an_answer_that_fits_no_batch_fails_it_with_a_sentence(queue, running_worker, answer):
    async def handler(jobs):
        return answer

    await add(queue, 1, 2)
    await running_worker(handler, batch=(2, 50), max_attempts=1)

    dead = await eventually(lambda: letters(queue, 2))
    assert "must return None or a list of 2 outcomes" in dead[0]["error"]


async def test_a_job_that_cannot_be_decoded_fails_alone(queue, running_worker, raw):
    from chasquimq.wire.envelope import encode_envelope

    seen = []

    async def handler(jobs):
        seen.extend(job.data for job in jobs)

    await raw("XADD", raw.keys.stream, "*", "d", encode_envelope("bad", b"\xc1", 1, 0, None))
    await add(queue, 1, 2)
    await running_worker(handler, batch=(3, 50), max_attempts=1)

    await eventually(lambda: letters(queue, 1))
    await eventually(lambda: sorted(seen) == [1, 2])


async def test_a_retried_job_is_in_a_later_batch(queue, running_worker):
    attempts = []

    async def handler(jobs):
        attempts.append([(job.data, job.run_number) for job in jobs])
        return [ValueError("again") if job.run_number == 1 else "done" for job in jobs]

    await queue.add("score", "a", attempts=2, backoff=10)
    await running_worker(handler, batch=(2, 10))

    await eventually(lambda: len(attempts) == 2)
    assert attempts == [[("a", 1)], [("a", 2)]]


async def test_a_plain_function_runs_in_a_thread(queue, running_worker):
    threads = []

    def handler(jobs):
        threads.append((threading.current_thread().name, len(jobs)))
        return [job.data for job in jobs]

    jobs = await add(queue, 1, 2, 3, 4)
    await running_worker(handler, batch=(4, 100), store_results=True)

    assert [await job.wait_for_result(timeout=10) for job in jobs] == [1, 2, 3, 4]
    assert threads[0][0] != threading.main_thread().name
    assert sum(count for _, count in threads) == 4


async def test_each_name_gathers_for_itself(queue, running_worker):
    seen = []

    async def mails(jobs):
        seen.append(("mail", len(jobs)))

    async def bills(jobs):
        seen.append(("bill", len(jobs)))

    await queue.add_bulk([{"name": name, "data": 0} for name in ("mail", "bill") * 3])
    await running_worker({"mail": mails, "bill": bills}, batch=(3, 1000))

    await eventually(lambda: len(seen) == 2)
    assert sorted(seen) == [("bill", 3), ("mail", 3)]


async def test_a_batch_is_nobodys_job(queue, running_worker):
    currents = []

    async def handler(jobs):
        currents.append(current_job())

    await add(queue, 1, 2)
    await running_worker(handler, batch=(2, 50))

    await eventually(lambda: currents)
    assert currents == [None]


async def test_jobs_that_time_out_leave_their_batch_and_end_it(queue, running_worker):
    ended = asyncio.Event()

    async def handler(jobs):
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    await add(queue, 1, 2)
    await running_worker(handler, batch=(2, 10), timeout_ms=100, max_attempts=1)

    dead = await eventually(lambda: letters(queue, 2))
    assert {letter["error"].partition(":")[0] for letter in dead} == {"JobTimeout"}
    await asyncio.wait_for(ended.wait(), 5)


async def test_a_stop_lets_a_batch_that_runs_end(queue, running_worker):
    started, gate = asyncio.Event(), asyncio.Event()

    async def handler(jobs):
        started.set()
        await gate.wait()
        return ["done"] * len(jobs)

    jobs = await add(queue, 1, 2)
    running = await running_worker(handler, batch=(2, 10), store_results=True)
    await asyncio.wait_for(started.wait(), 10)
    stopping = asyncio.create_task(running.stop())
    await asyncio.sleep(0)
    gate.set()
    await stopping

    assert [await queue.get_job_result(job.id) for job in jobs] == ["done", "done"]


async def test_a_table_has_a_row_for_each_job_and_its_answer_is_theirs(queue, running_worker):
    tables = []

    async def score(table: pa.Table) -> pa.Array:
        tables.append(table)
        return pa.compute.multiply(table["amount"], 2)

    jobs = await add(queue, {"amount": 1}, {"amount": 2, "note": "x"}, {"amount": 3})
    await running_worker(score, batch=Batch(3, 100, "arrow"), store_results=True)

    assert [await job.wait_for_result(timeout=10) for job in jobs] == [2, 4, 6]
    assert tables[0].column_names == ["_job_id", "_name", "_attempt", "amount", "note"]
    assert tables[0]["_job_id"].to_pylist() == [job.id for job in jobs]
    assert tables[0]["note"].to_pylist() == [None, "x", None]


async def test_jobs_that_share_no_table_are_tried_alone(queue, running_worker):
    def score(table: pa.Table) -> list:
        return [value * 2 for value in table["amount"].to_pylist()]

    jobs = await add(queue, {"amount": 1}, {"amount": "text"}, {"amount": 3})
    await running_worker(score, batch=Batch(3, 100, "arrow"), store_results=True)

    assert [await job.wait_for_result(timeout=10) for job in jobs] == [2, "texttext", 6]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"batch": 5}, "a pair such as"),
        ({"batch": ()}, "a pair such as"),
        ({"batch": (0, 1)}, "batch size"),
        ({"batch": ("x", 1)}, "batch size"),
        ({"batch": (5, -1)}, "wait_ms"),
        ({"batch": (5, 1, "rows")}, "form"),
        ({"batch": (50, 1), "concurrency": 10}, "at most 10"),
        ({"batch": (5, 1), "pool": "process"}, "thread"),
        ({"batch": (5, 1000), "timeout_ms": 1000}, "below 1000"),
    ],
)
async def test_a_batch_that_could_never_be_is_refused(options, why):
    with pytest.raises(SettingsError, match=why):
        Worker("q", len, **options)


async def test_a_refused_time_limit_of_batches_in_threads_names_no_remedy_that_is_refused_too():
    with pytest.raises(SettingsError, match="timeout_ms must be unset") as refused:
        Worker("q", len, batch=(4, 200), timeout_ms=1000)

    assert "process" not in str(refused.value)
    assert "use an `async def` handler" in str(refused.value)


async def test_an_async_handler_of_batches_runs_here_whatever_the_pool(queue, running_worker):
    seen = []

    async def handler(jobs):
        seen.append((os.getpid(), len(jobs)))

    await add(queue, 1, 2)
    await running_worker(handler, batch=(2, 1_000), pool="process")

    await eventually(lambda: seen)
    assert seen == [(os.getpid(), 2)]


async def test_a_handler_that_wants_to_exit_fails_its_jobs_and_not_the_worker(
    queue, running_worker
):
    async def handler(jobs):
        raise SystemExit(3)

    await add(queue, 1, 2)
    running = await running_worker(handler, batch=(2, 50), max_attempts=1)

    dead = await eventually(lambda: letters(queue, 2))
    assert {letter["error"].partition(":")[0] for letter in dead} == {"SystemExit"}
    assert running.worker.health().is_ok


async def test_a_stop_does_not_wait_for_jobs_that_cannot_come(queue, running_worker):
    sizes = []

    async def handler(jobs):
        sizes.append(len(jobs))

    await add(queue, 1, 2)
    running = await running_worker(handler, batch=(50, 60_000))
    await eventually(lambda: running.worker.health().running == 2)

    await asyncio.wait_for(running.stop(), 10)

    assert sizes == [2]
    assert await empties(queue)()


async def test_a_job_with_little_time_does_not_spend_it_waiting(queue, running_worker):
    sizes = []

    async def handler(jobs):
        sizes.append(len(jobs))

    await queue.add("score", 1, timeout_ms=4_000)
    await running_worker(handler, batch=(50, 60_000))

    await eventually(lambda: sizes == [1])
    await eventually(empties(queue))


async def test_an_attempt_ends_when_its_handler_has_cleaned_up(queue, running_worker):
    steps = []

    async def handler(jobs):
        steps.append(f"run {jobs[0].run_number}")
        try:
            await asyncio.sleep(60 if jobs[0].run_number == 1 else 0)
        except asyncio.CancelledError:
            await asyncio.sleep(0.2)
            steps.append("cleaned up")
            raise

    await queue.add("score", 1, attempts=2, backoff=1, timeout_ms=100)
    await running_worker(handler, batch=(1, 10))

    await eventually(lambda: len(steps) == 3)
    assert steps == ["run 1", "cleaned up", "run 2"]


async def test_numbers_that_no_column_holds_fail_nobody_else(queue, running_worker):
    def score(table: pa.Table) -> list:
        return table["amount"].to_pylist()

    jobs = await add(queue, {"amount": 1}, {"amount": 2**63}, {"amount": 3})
    await running_worker(score, batch=Batch(3, 100, "arrow"), store_results=True, max_attempts=1)

    assert [await jobs[at].wait_for_result(timeout=10) for at in (0, 2)] == [1, 3]
    (dead,) = await eventually(lambda: letters(queue, 1))
    assert dead["job_id"] == jobs[1].id


async def test_a_table_keeps_odd_keys_and_its_own_columns(queue, running_worker):
    tables = []

    async def score(table: pa.Table) -> None:
        tables.append(table)

    (job,) = await add(queue, {1: "x", "_job_id": "mine"})
    await running_worker(score, batch=Batch(1, 0, "arrow"))

    await eventually(lambda: tables)
    assert tables[0].to_pylist() == [{"_job_id": job.id, "_name": "score", "_attempt": 0, "1": "x"}]


async def test_alone_a_job_must_have_one_outcome_too(queue, running_worker):
    def score(table: pa.Table) -> list:
        return [] if table["amount"][0].as_py() == "text" else table["amount"].to_pylist()

    jobs = await add(queue, {"amount": 1}, {"amount": "text"})
    await running_worker(score, batch=Batch(2, 100, "arrow"), store_results=True, max_attempts=1)

    assert await jobs[0].wait_for_result(timeout=10) == 1
    (dead,) = await eventually(lambda: letters(queue, 1))
    assert "a batch of 1 must return" in dead["error"]


class Overlaps:
    """Notes the runs of each job, and the jobs that ran beside themselves."""

    def __init__(self) -> None:
        self.starts: list[tuple[object, int]] = []
        self.ends = 0
        self.doubled: list[object] = []
        self._running: list[object] = []

    def begin(self, jobs) -> None:
        self.starts += [(job.data, job.run_number) for job in jobs]
        self.doubled += [job.data for job in jobs if job.data in self._running]
        self._running += [job.data for job in jobs]

    def end(self, jobs) -> None:
        self.ends += len(jobs)
        for job in jobs:
            self._running.remove(job.data)


async def test_a_job_that_times_out_ends_its_batch_before_it_runs_again(queue, running_worker):
    overlaps, errors = Overlaps(), []

    async def handler(jobs):
        overlaps.begin(jobs)
        try:
            await asyncio.sleep(2 if jobs[0].run_number == 1 else 0)
        except asyncio.CancelledError:
            await asyncio.sleep(0.3)
            raise
        finally:
            overlaps.end(jobs)

    await queue.add_bulk(
        [
            {"name": "score", "data": "hurried", "attempts": 2, "backoff": 1, "timeout_ms": 200},
            {"name": "score", "data": "patient", "attempts": 2, "backoff": 1},
        ]
    )
    await running_worker(
        handler, batch=(2, 50), on_failed=lambda job: errors.append((job.data, job.error))
    )

    await eventually(empties(queue))
    await eventually(lambda: len(errors) == 2)
    assert overlaps.doubled == []
    assert sorted(overlaps.starts) == [
        ("hurried", 1), ("hurried", 2), ("patient", 1), ("patient", 2),
    ]  # fmt: skip
    assert {error.partition(":")[0] for _, error in errors} == {"JobTimeout"}


async def test_a_batch_in_a_thread_runs_to_its_end_whatever_time_its_jobs_have(
    queue, running_worker
):
    overlaps = Overlaps()

    def handler(jobs):
        overlaps.begin(jobs)
        time.sleep(0.6)
        overlaps.end(jobs)
        return [job.data for job in jobs]

    (job, _) = await queue.add_bulk(
        [
            {"name": "score", "data": "hurried", "backoff": 1, "timeout_ms": 200},
            {"name": "score", "data": "patient"},
        ]
    )
    await running_worker(handler, batch=(2, 50), store_results=True)

    assert await job.wait_for_result(timeout=10) == "hurried"
    await eventually(empties(queue))
    assert sorted(overlaps.starts) == [("hurried", 1), ("patient", 1)]


async def test_a_batch_that_cleans_up_is_not_handed_back_meanwhile(queue, running_worker, raw):
    cleaning, gate = asyncio.Event(), asyncio.Event()

    async def handler(jobs):
        try:
            await asyncio.sleep(60)
        finally:
            cleaning.set()
            await gate.wait()

    await queue.add("score", 1, timeout_ms=100)
    running = await running_worker(handler, batch=(1, 10))
    await asyncio.wait_for(cleaning.wait(), 10)

    await running.cut_short()

    ((_, owner, _, _),) = await raw.pending()
    assert owner.decode() == running.worker.consumer_id
    gate.set()


async def test_a_redelivered_job_is_a_batch_of_its_own(queue, running_worker, raw):
    """It may have killed its process, and it need not wait for others."""
    batches = []

    async def handler(jobs):
        batches.append([job.data for job in jobs])

    key = raw.keys.stream
    await raw("XGROUP", "CREATE", key, "default", "$", "MKSTREAM")
    await add(queue, "redelivered")
    (row,) = await raw("XREADGROUP", "GROUP", "default", "dead", "STREAMS", key, ">")
    await raw("XCLAIM", key, "default", "dead", 0, row[1][0][0], "IDLE", 3_600_000, "JUSTID")
    await add(queue, 1, 2)
    await running_worker(handler, batch=(3, 30_000))

    await eventually(lambda: ["redelivered"] in batches)
    await add(queue, 3)
    await eventually(lambda: len(batches) == 2)
    assert batches == [["redelivered"], [1, 2, 3]]


async def test_a_batch_that_is_cancelled_before_its_first_step_fails_its_jobs(
    queue, running_worker
):
    """Whoever cancels all tasks of the process may meet one that has not begun."""
    runs, cancelled = [], []
    loop = asyncio.get_running_loop()

    def cancelling(loop, coroutine, **more):
        task = asyncio.Task(coroutine, loop=loop, **more)
        if coroutine.__qualname__ == "_run" and not cancelled:
            cancelled.append(task.cancel())
        return task

    async def handler(jobs):
        runs.extend(job.data for job in jobs)

    backoff = {"kind": "fixed", "delay_ms": 10, "jitter_ms": 0}
    await running_worker(handler, batch=(3, 50))
    loop.set_task_factory(cancelling)
    try:
        await queue.add_bulk([{"name": "n", "data": at, "backoff": backoff} for at in range(3)])
        await eventually(lambda: sorted(runs) == [0, 1, 2])
    finally:
        loop.set_task_factory(None)

    assert cancelled
    await eventually(empties(queue))
