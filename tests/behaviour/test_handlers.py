"""Handlers: plain, async or in a process of their own, chosen by name, and what they may raise."""

from __future__ import annotations

import asyncio
import functools
import os
import threading
import time

import pytest

from chasquimq import UnrecoverableError, Worker, current_job
from chasquimq.errors import RetryLater, SettingsError
from chasquimq.settings import RetrySettings
from chasquimq.wire.envelope import encode_envelope
from support import fault_worker
from support.waiting import eventually

SOON = RetrySettings(initial_backoff_ms=10, max_backoff_ms=20, jitter_ms=0)
pytestmark = pytest.mark.takes_turns


async def echo(job):
    return job.data


def echo_in_thread(job):
    return [job.data, threading.current_thread() is threading.main_thread()]


def wrapped(job):
    return echo(job)


class Greeter:
    async def __call__(self, job):
        return f"hello {job.data}"


@pytest.mark.parametrize(
    ("handler", "answer"),
    [
        (echo, "ada"),
        (echo_in_thread, ["ada", False]),
        (wrapped, "ada"),
        (Greeter(), "hello ada"),
        (functools.partial(echo), "ada"),
        (lambda job: job.data.upper(), "ADA"),
    ],
    ids=["async", "def", "def_around_async", "async_object", "partial", "lambda"],
)
async def test_any_callable_of_a_job_is_a_handler(queue, running_worker, handler, answer):
    await running_worker(handler, store_results=True)

    job = await queue.add("greet", "ada")

    assert await job.wait_for_result(timeout=5) == answer


async def test_a_def_handler_runs_in_a_child_process_when_asked(queue, running_worker):
    await running_worker(fault_worker.facts, pool="process", pool_size=1, store_results=True)

    job = await queue.add("facts", {"n": 1})

    pid, *seen = await job.wait_for_result(timeout=10)
    assert pid != os.getpid()
    assert seen == [{"n": 1}, 0, 1, job.id]


async def test_a_mixed_mapping_sends_only_its_def_handlers_to_processes(queue, running_worker):
    async def here(job):
        return os.getpid()

    handlers = {"here": here, "there": fault_worker.facts}
    await running_worker(handlers, pool="process", pool_size=1, store_results=True)

    ours = await queue.add("here", None)
    theirs = await queue.add("there", None)

    assert await ours.wait_for_result(timeout=10) == os.getpid()
    assert (await theirs.wait_for_result(timeout=10))[0] != os.getpid()


async def test_a_process_pool_starts_no_more_children_than_cores(queue, running_worker):
    worker = await running_worker(fault_worker.facts, pool="process", store_results=True)

    jobs = [await queue.add("facts", i) for i in range(12)]
    answers = [await job.wait_for_result(timeout=10) for job in jobs]

    assert len({pid for pid, *_ in answers}) <= (os.cpu_count() or 1)
    assert worker.worker.health().completed == 12


async def test_a_job_never_waits_for_a_thread_in_a_worker_that_has_none_free(
    queue, raw, running_worker
):
    gate = threading.Event()

    def waits(job):
        gate.wait(10)

    await running_worker(waits, pool_size=1)

    await queue.add_bulk([{"name": "n", "data": i} for i in range(10)])

    await eventually(lambda: held(raw, 2), what="one running, one prefetched")
    gate.set()


async def test_jobs_are_routed_by_name(queue, running_worker):
    async def double(job):
        return job.data * 2

    def negate(job):
        return -job.data

    await running_worker({"double": double, "negate": negate}, store_results=True)

    doubled = await queue.add("double", 21)
    negated = await queue.add("negate", 21)

    assert await doubled.wait_for_result(timeout=5) == 42
    assert await negated.wait_for_result(timeout=5) == -21


async def test_current_job_is_the_running_one_and_none_outside(queue, running_worker):
    async def here(job):
        before = current_job() is job
        await asyncio.sleep(0)
        return [before, current_job() is job]

    def in_thread(job):
        return current_job() is job

    await running_worker({"here": here, "in_thread": in_thread}, store_results=True)

    here_job = await queue.add("here", None)
    thread_job = await queue.add("in_thread", None)

    assert await here_job.wait_for_result(timeout=5) == [True, True]
    assert await thread_job.wait_for_result(timeout=5) is True
    assert current_job() is None


async def test_a_handler_sees_what_was_added(queue, running_worker):
    seen = []

    async def handler(job):
        seen.append(job)

    await running_worker(handler)
    added = await queue.add("greet", {"to": "ada"}, job_id="order/7")

    await eventually(lambda: seen)
    (job,) = seen
    assert (job.id, job.name, job.data) == ("order/7", "greet", {"to": "ada"})
    assert job.created_at_ms == added.created_at_ms
    assert (job.attempt, job.attempts_made, job.run_number) == (0, 0, 1)
    assert (job.redelivered, job.lease_lost) == (False, False)


async def test_attempts_count_from_zero_and_the_key_of_a_job_never_changes(queue, running_worker):
    seen = []

    async def fails_twice(job):
        seen.append((job.attempt, job.run_number, job.idempotency_key("mail")))
        if job.attempt < 2:
            raise ValueError("not yet")

    await running_worker(fails_twice, retry=SOON)
    await queue.add("n", None)

    await eventually(lambda: len(seen) == 3)
    assert [attempt for attempt, _, _ in seen] == [0, 1, 2]
    assert [run_number for _, run_number, _ in seen] == [1, 2, 3]
    assert len({key for _, _, key in seen}) == 1


async def test_two_jobs_and_two_steps_have_keys_of_their_own(queue, running_worker):
    keys = []

    async def handler(job):
        keys.extend([job.idempotency_key("a"), job.idempotency_key("b"), job.idempotency_key()])

    await running_worker(handler)
    await queue.add_bulk([{"name": "n", "data": i} for i in range(2)])

    await eventually(lambda: len(keys) == 6)
    assert len(set(keys)) == 6


async def test_handlers_share_the_state_that_startup_made(queue, running_worker):
    async def open_database(worker):
        worker.state["database"] = {"ada": 36}

    async def look_up(job):
        return job.state["database"][job.data]

    await running_worker(look_up, on_startup=open_database, store_results=True)

    job = await queue.add("look_up", "ada")

    assert await job.wait_for_result(timeout=5) == 36


async def test_a_failing_job_waits_longer_each_time_and_is_buried_at_its_limit(
    queue, raw, running_worker
):
    starts_s = []

    async def fails(job):
        starts_s.append(time.monotonic())
        raise ValueError(f"no luck {job.attempt}")

    retry = RetrySettings(initial_backoff_ms=100, multiplier=3, jitter_ms=0)
    await running_worker(fails, retry=retry, max_attempts=3)
    job = await queue.add("n", None)

    (entry,) = await eventually(raw.dlq)
    assert len(starts_s) == 3
    assert starts_s[1] - starts_s[0] >= 0.1
    assert starts_s[2] - starts_s[1] >= 0.3
    assert entry[b"reason"] == b"retries_exhausted"
    assert entry[b"error"] == b"ValueError: no luck 2"
    assert entry[b"attempt"] == b"3"
    assert job.id.encode() in entry[b"d"]


async def test_a_job_with_its_own_budget_is_tried_that_often(queue, raw, running_worker):
    starts = []

    async def fails(job):
        starts.append(job.attempt)
        raise ValueError

    await running_worker(fails, max_attempts=1)
    await queue.add("n", None, attempts=3, backoff={"kind": "fixed", "delay_ms": 5, "jitter_ms": 0})

    await eventually(raw.dlq)
    assert starts == [0, 1, 2]


async def test_an_unrecoverable_error_buries_at_once(queue, raw, running_worker):
    class CardStolen(UnrecoverableError):
        pass

    async def fails(job):
        raise CardStolen("stolen")

    await running_worker(fails)
    await queue.add("charge", None)

    (entry,) = await eventually(raw.dlq)
    assert entry[b"reason"] == b"unrecoverable"
    assert entry[b"error"] == b"CardStolen: stolen"
    assert entry[b"n"] == b"charge"


async def test_retry_later_runs_again_and_spends_no_attempt(queue, raw, running_worker):
    starts = []

    async def snoozes(job):
        starts.append((time.monotonic(), job.attempt))
        if len(starts) < 4:
            raise RetryLater(50)

    await running_worker(snoozes, max_attempts=1)
    await queue.add("n", None)

    await eventually(lambda: len(starts) == 4)
    assert [attempt for _, attempt in starts] == [0, 0, 0, 0]
    assert starts[1][0] - starts[0][0] >= 0.05
    assert await raw.dlq() == []


def cancels():
    raise asyncio.CancelledError


def exits():
    raise SystemExit(3)


def stops():
    raise GeneratorExit


@pytest.mark.parametrize("is_waiting", [False, True], ids=["at_once", "after_a_wait"])
@pytest.mark.parametrize(
    ("act", "error"),
    [(cancels, b"CancelledError"), (exits, b"SystemExit: 3"), (stops, b"GeneratorExit")],
    ids=["cancelled_error", "system_exit", "generator_exit"],
)
async def test_whatever_a_handler_raises_is_a_failure_of_its_job_alone(
    queue, raw, running_worker, act, error, is_waiting
):
    done = []

    async def handler(job):
        if job.name == "good":
            done.append(job.id)
            return
        if is_waiting:
            await asyncio.sleep(0.001)
        act()

    running = await running_worker(handler, max_attempts=2, retry=SOON)
    await queue.add("bad", None)
    await eventually(raw.dlq)
    await queue.add("good", None)

    await eventually(lambda: done)
    (entry,) = await raw.dlq()
    assert (entry[b"reason"], entry[b"error"]) == (b"retries_exhausted", error)
    assert running.worker.health().failed == 2
    assert not running.task.done()


async def test_an_error_that_cannot_be_printed_still_fails_its_job(queue, raw, running_worker):
    class Mute(Exception):
        def __str__(self):
            raise ValueError("no words")

    async def fails(job):
        raise Mute

    await running_worker(fails, max_attempts=1)
    await queue.add("n", None)

    (entry,) = await eventually(raw.dlq)
    assert entry[b"error"].startswith(b"Mute")


@pytest.mark.parametrize("place", ["loop", "thread", "process"])
async def test_a_payload_that_does_not_decode_is_buried_when_it_is_asked_for(
    raw, running_worker, place
):
    handlers = {"loop": echo, "thread": fault_worker.read, "process": fault_worker.read}
    pool = "process" if place == "process" else "thread"
    await running_worker(handlers[place], pool=pool, pool_size=1)
    envelope = encode_envelope("job-1", b"\xc1", 1)

    await raw("XADD", raw.keys.stream, "*", "d", envelope, "n", "broken")

    (entry,) = await eventually(raw.dlq)
    assert entry[b"reason"] == b"decode_failed"
    assert (entry[b"d"], entry[b"n"], entry[b"attempt"]) == (envelope, b"broken", b"1")


async def test_a_payload_that_nobody_asks_for_is_never_decoded(queue, raw, running_worker):
    seen = []

    async def looks_away(job):
        seen.append(job.id)

    await running_worker(looks_away)
    await raw("XADD", raw.keys.stream, "*", "d", encode_envelope("job-1", b"\xc1", 1))

    await eventually(lambda: seen == ["job-1"])
    await eventually(lambda: is_empty(queue))
    assert await raw.dlq() == []


async def test_an_error_of_a_child_process_is_recorded_in_its_own_words(queue, raw, running_worker):
    await running_worker(fault_worker.fail, pool="process", pool_size=1, max_attempts=1)
    await queue.add("fail", "no luck")

    (entry,) = await eventually(raw.dlq)
    assert entry[b"error"] == b"ValueError: no luck"


async def generates(job):
    yield job


@pytest.mark.parametrize(
    "handler",
    [None, "f", {}, {"a": 1}, generates],
    ids=["none", "text", "empty", "in_map", "yield"],
)
def test_what_cannot_run_a_job_is_refused(handler):
    with pytest.raises(SettingsError, match="must be a function"):
        Worker("q", handler)


class Desk:
    async def takes_a_job(self, job): ...

    async def takes_none(self): ...

    def __call__(self, job, copies=1): ...


FITTING = {
    "function": echo,
    "method": Desk().takes_a_job,
    "object": Desk(),
    "lambda": lambda _job: None,
    "default": lambda _job, _copies=1: None,
    "any number": lambda *_jobs: None,
    "rest bound": functools.partial(lambda _a, _job: None, 1),
    "built-in without a signature": print,
    "type": dict,
}
UNFITTING = {
    "none": (lambda: None, "()"),
    "two": (lambda _job, _other: None, "(_job, _other)"),
    "by name only": (lambda *, _job: None, "(*, _job)"),
    "by name only beside it": (lambda _job, *, _copies: None, "(_job, *, _copies)"),
    "method of none": (Desk().takes_none, "()"),
    "method of the class": (Desk.takes_a_job, "(self, job)"),
    "all bound": (functools.partial(echo, 1), "()"),
}


@pytest.mark.parametrize("handler", FITTING.values(), ids=FITTING)
def test_what_can_be_called_with_a_job_is_taken(handler):
    Worker("q", handler)
    Worker("q", {"a": handler})


@pytest.mark.parametrize(("handler", "takes"), UNFITTING.values(), ids=UNFITTING)
def test_what_cannot_be_called_with_one_job_is_refused(handler, takes):
    with pytest.raises(SettingsError) as caught:
        Worker("q", {"mail": handler})

    assert str(caught.value).startswith(
        "handler['mail'] must be a function that takes one argument, the job"
    )
    assert str(caught.value).endswith(f"; it takes {takes}")


@pytest.mark.parametrize("concurrency", [0, -1, None, "2"])
def test_a_worker_that_may_run_nothing_is_refused(concurrency):
    with pytest.raises(SettingsError, match="concurrency must be"):
        Worker("q", echo, concurrency=concurrency)


def test_a_pool_of_no_size_is_refused():
    with pytest.raises(SettingsError, match="pool_size"):
        Worker("q", echo, pool_size=0)


async def held(raw, count):
    return len(await raw.pending()) == count


async def is_empty(queue):
    return (await queue.counts()).backlog == 0
