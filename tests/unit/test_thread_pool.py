"""What a thread pool promises to the loop that calls it."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from chasquimq.engine.thread_pool import ThreadPool
from chasquimq.errors import SettingsError
from support.waiting import patience

GATE_S_MAX = 15.0
colour: contextvars.ContextVar[str] = contextvars.ContextVar("colour", default="none")


class Gate:
    """A handler that says it has started and waits to be let through."""

    def __init__(self) -> None:
        self.started = threading.Semaphore(0)
        self.opened = threading.Event()
        self.calls: list[object] = []

    def __call__(self, job: object) -> object:
        self.calls.append(job)
        self.started.release()
        assert self.opened.wait(GATE_S_MAX), "the gate was never opened"
        return job

    async def until_started(self, count: int = 1) -> None:
        for _ in range(count):
            assert await asyncio.to_thread(self.started.acquire, timeout=GATE_S_MAX)


@pytest.fixture
def pool() -> Iterator[ThreadPool]:
    pool = ThreadPool(2, "test-pool")
    yield pool
    pool.close()


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.opened.set()


def pool_threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name.startswith("test-pool")]


async def until_no_pool_threads() -> None:
    async with asyncio.timeout(GATE_S_MAX):
        while pool_threads():  # noqa: ASYNC110 - a thread tells nobody that it ended
            await asyncio.sleep(0.005)


def raises(error: BaseException) -> Any:
    def handler(job: object) -> None:
        raise error

    return handler


async def test_the_handler_gets_the_job_and_its_result_comes_back(pool: ThreadPool) -> None:
    assert await pool.run(lambda job: [job, "done"], 7) == [7, "done"]


async def test_the_handler_runs_in_a_daemon_thread_of_the_pool(pool: ThreadPool) -> None:
    thread = await pool.run(lambda _job: threading.current_thread(), None)

    assert thread.name.startswith("test-pool")
    assert thread.daemon


async def test_no_thread_starts_before_the_first_call() -> None:
    before = pool_threads()

    ThreadPool(4, "test-pool")

    # Threads of pools that were closed just before may still be on their way out.
    assert set(pool_threads()) <= set(before)


async def test_calls_one_after_the_other_share_one_thread(pool: ThreadPool) -> None:
    names = {await pool.run(lambda _job: threading.get_ident(), None) for _ in range(20)}

    assert len(names) == 1


async def test_no_more_handlers_run_at_once_than_the_pool_has_threads(
    pool: ThreadPool, gate: Gate
) -> None:
    calls = [asyncio.create_task(pool.run(gate, number)) for number in range(5)]
    await gate.until_started(2)
    running = list(gate.calls)
    gate.opened.set()

    assert await asyncio.gather(*calls) == [0, 1, 2, 3, 4]
    assert len(running) == 2
    assert len(pool_threads()) == 2


@pytest.mark.parametrize(
    "error",
    [
        ValueError("boom"),
        SystemExit(3),
        KeyboardInterrupt(),
        GeneratorExit(),
        asyncio.CancelledError(),
        StopAsyncIteration(),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_what_the_handler_raises_is_raised_as_it_is(
    pool: ThreadPool, error: BaseException
) -> None:
    caught: BaseException | None = None
    try:
        await pool.run(raises(error), None)
    except BaseException as raised:  # noqa: BLE001 - SystemExit is one of the cases
        caught = raised

    assert caught is error


async def test_a_stop_iteration_arrives_as_a_runtime_error(pool: ThreadPool) -> None:
    with pytest.raises(RuntimeError, match="StopIteration") as caught:
        await pool.run(raises(StopIteration(5)), None)

    assert isinstance(caught.value.__cause__, StopIteration)


async def test_a_thread_survives_what_its_handler_raises(pool: ThreadPool) -> None:
    with pytest.raises(ValueError, match="boom"):
        await pool.run(raises(ValueError("boom")), None)

    assert await pool.run(str, 1) == "1"
    assert len(pool_threads()) == 1


async def test_the_handler_sees_the_callers_context(pool: ThreadPool) -> None:
    colour.set("green")

    assert await pool.run(lambda _job: colour.get(), None) == "green"


async def test_what_a_handler_sets_in_its_context_is_seen_by_nobody_else(pool: ThreadPool) -> None:
    colour.set("green")

    await pool.run(lambda _job: colour.set("red"), None)

    assert await pool.run(lambda _job: colour.get(), None) == "green"
    assert colour.get() == "green"


async def test_a_late_answer_after_a_cancel_is_dropped(pool: ThreadPool, gate: Gate) -> None:
    call = asyncio.create_task(pool.run(gate, 1))
    await gate.until_started()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    gate.opened.set()

    assert [await pool.run(str, number) for number in range(3)] == ["0", "1", "2"]


async def test_a_call_cancelled_before_its_turn_never_runs(gate: Gate) -> None:
    pool = ThreadPool(1, "test-pool")
    first = asyncio.create_task(pool.run(gate, "first"))
    await gate.until_started()
    second = asyncio.create_task(pool.run(gate, "second"))
    await asyncio.sleep(0)
    second.cancel()
    gate.opened.set()
    await first
    await pool.run(str, None)

    assert gate.calls == ["first"]
    pool.close()


async def test_close_does_not_wait_for_a_running_handler(pool: ThreadPool, gate: Gate) -> None:
    call = asyncio.create_task(pool.run(gate, "kept"))
    await gate.until_started()
    started_s = time.monotonic()
    pool.close()
    closed_after_s = time.monotonic() - started_s
    gate.opened.set()

    assert closed_after_s < 0.5 * patience()
    assert await call == "kept"
    await until_no_pool_threads()


async def test_close_refuses_calls_that_have_not_started(gate: Gate) -> None:
    pool = ThreadPool(1, "test-pool")
    running = asyncio.create_task(pool.run(gate, "running"))
    await gate.until_started()
    waiting = asyncio.create_task(pool.run(gate, "waiting"))
    await asyncio.sleep(0)
    pool.close()

    with pytest.raises(RuntimeError, match="closed"):
        await waiting
    gate.opened.set()
    assert await running == "running"
    assert gate.calls == ["running"]


async def test_a_closed_pool_refuses_calls_and_may_be_closed_again(pool: ThreadPool) -> None:
    await pool.run(str, 1)
    pool.close()
    pool.close()

    with pytest.raises(RuntimeError, match="closed"):
        await pool.run(str, 1)
    await until_no_pool_threads()


def test_an_answer_for_a_closed_loop_is_dropped_without_a_word(
    pool: ThreadPool, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    complaints: list[object] = []
    monkeypatch.setattr(threading, "excepthook", complaints.append)

    async def leave_a_call_behind() -> None:
        call = asyncio.create_task(pool.run(gate, 1))
        await gate.until_started()
        call.cancel()

    asyncio.run(leave_a_call_behind())
    gate.opened.set()
    pool.close()
    asyncio.run(until_no_pool_threads())

    assert complaints == []


def test_a_pool_serves_the_next_loop_after_its_first_was_closed(
    pool: ThreadPool, gate: Gate
) -> None:
    async def leave_a_call_behind() -> None:
        call = asyncio.create_task(pool.run(gate, 1))
        await gate.until_started()
        call.cancel()

    async def use_again() -> list[str]:
        gate.opened.set()
        async with asyncio.timeout(GATE_S_MAX):
            return [await pool.run(str, number) for number in range(5)]

    asyncio.run(leave_a_call_behind())

    assert asyncio.run(use_again()) == ["0", "1", "2", "3", "4"]


async def test_an_idle_pool_keeps_no_job_and_no_error_alive(pool: ThreadPool) -> None:
    class Payload:
        pass

    def fail(job: object) -> None:
        raise ValueError(job)

    payload = Payload()
    alive = weakref.ref(payload)
    gc.disable()
    try:
        with pytest.raises(ValueError, match="Payload"):
            await pool.run(fail, payload)
        del payload
        await pool.run(str, None)
        assert alive() is None
    finally:
        gc.enable()


async def test_many_calls_at_once_all_come_back(pool: ThreadPool) -> None:
    answers = await asyncio.gather(*(pool.run(lambda job: job, number) for number in range(2_000)))

    assert answers == list(range(2_000))


async def test_a_pool_refuses_to_work_in_a_forked_process(
    pool: ThreadPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getpid", lambda: -1)

    with pytest.raises(RuntimeError, match="fork"):
        await pool.run(str, 1)


@pytest.mark.parametrize("size", [0, -1])
def test_a_pool_needs_a_thread(size: int) -> None:
    with pytest.raises(SettingsError, match="at least 1"):
        ThreadPool(size, "test-pool")
