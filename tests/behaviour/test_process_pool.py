"""A handler in a child process can be stopped, and its death costs one job."""

from __future__ import annotations

import asyncio
import functools
import importlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from chasquimq.engine.job_context import WorkerContext
from chasquimq.engine.process_pool.child import ORPHAN_EXIT_CODE, TEXT_BYTES_MAX
from chasquimq.engine.process_pool.frames import (
    ChildDied,
    HandlerAddress,
    HandlerCall,
    JobValues,
    RemoteError,
    encode_frame,
    read_frame,
)
from chasquimq.engine.process_pool.pool import ProcessPool, hello_frame
from chasquimq.errors import (
    DecodeError,
    JobTimeout,
    RetryLater,
    SettingsError,
    UnrecoverableError,
)
from chasquimq.model.delivery import Delivery
from chasquimq.store.consumer import decode
from support.waiting import patience

HANDLERS = """
import asyncio, atexit, contextvars, ctypes, os, signal, subprocess, sys, threading, time
from chasquimq.errors import RetryLater, UnrecoverableError
from chasquimq.job import current_job

colour = contextvars.ContextVar("colour", default="none")

class CardStolen(UnrecoverableError):
    pass

class Unprintable(Exception):
    def __str__(self):
        raise ValueError("no words")

def report_pid(path):
    with open(path + ".tmp", "w") as file:
        file.write(str(os.getpid()))
    os.rename(path + ".tmp", path)

def echo(job): return job.data
def describe(job): return [job.id, job.name, job.data, job.attempt, job.created_at_ms]
def count(job): return [job.run_number, job.redelivered, current_job() is job]
async def count_later(job): await asyncio.sleep(0); return count(job)
def pid(job): return os.getpid()
def fail(job): raise ValueError(job.data)
def fail_silently(job): raise Unprintable()
def fail_for_good(job): raise CardStolen("stolen")
def come_back(job): raise RetryLater(job.data, "busy")
def return_a_set(job): return {1}
def return_bytes(job): return bytes(job.data)
def leave(job): sys.exit(4)
def vanish(job): os._exit(7)
def crash(job): ctypes.string_at(0)
def recolour(job): before = colour.get(); colour.set("red"); return before
def python_path(job): return os.environ.get("PYTHONPATH")
def import_path(job): return sys.path
def argv(job): return sys.argv

def nap(job):
    report_pid(job.data)
    time.sleep(30)

def spin(job):
    report_pid(job.data)
    while True: pass

def nap_deaf(job):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    nap(job)

def nap_and_swallow(job):
    report_pid(job.data)
    while True:
        try: time.sleep(30)
        except BaseException: pass

def short_nap(job):
    report_pid(job.data)
    time.sleep(0.3)
    return "rested"

def run_a_program(job):
    program = subprocess.Popen(["sleep", "30"])
    with open(job.data + ".program", "w") as file: file.write(str(program.pid))
    nap(job)

def fork_and_vanish(job):
    if os.fork() == 0:
        time.sleep(2)
        os._exit(0)
    os._exit(7)

def fork_and_return(job):
    return "child" if os.fork() == 0 else "parent"

def say_goodbye(job):
    atexit.register(report_pid, job.data)

async def sleep_a_little(job):
    await asyncio.sleep(0.01)
    return [job.data, id(asyncio.get_running_loop())]

async def fail_later(job):
    await asyncio.sleep(0)
    raise KeyError(job.data)

def report(job):
    for topic, value in job.data:
        job._context.report(job.delivery, topic, value)
    return "reported"

def report_later(job):
    def later():
        time.sleep(0.05)
        job._context.report(job.delivery, "note", "late")
        report_pid(job.data)
    threading.Thread(target=later).start()

def fork_and_report(job):
    pid = os.fork()
    job._context.report(job.delivery, "note", "copy" if pid == 0 else "child")
    if pid == 0: os._exit(0)
    os.waitpid(pid, 0)

def wait_for_loss(job):
    report_pid(job.data)
    asked_until = time.monotonic() + 30
    while not job.lease_lost and time.monotonic() < asked_until: time.sleep(0.01)
    return job.lease_lost

def has_lost(job): return job.lease_lost

class Shelf:
    @staticmethod
    def on_the_shelf(job): return "shelf"
    @classmethod
    def on_the_class(cls, job): return cls.__name__
    def on_an_instance(self, job): return None
"""

Run = Callable[..., Awaitable[Any]]
StartPool = Callable[..., Awaitable[ProcessPool]]
pytestmark = pytest.mark.takes_turns


@pytest.fixture(scope="module")
def handlers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    folder = tmp_path_factory.mktemp("handlers")
    (folder / "pool_handlers.py").write_text(HANDLERS)
    sys.path.insert(0, str(folder))
    yield importlib.import_module("pool_handlers")
    sys.path.remove(str(folder))
    del sys.modules["pool_handlers"]


@pytest.fixture
async def start_pool(handlers: ModuleType) -> AsyncIterator[StartPool]:
    pools: list[ProcessPool] = []

    async def start(
        *names: str, size: int = 1, context: WorkerContext | None = None
    ) -> ProcessPool:
        pool = ProcessPool({name: getattr(handlers, name) for name in names}, size, context)
        pools.append(pool)
        await pool.start()
        return pool

    yield start
    for pool in pools:
        await pool.close(0)


@pytest.fixture
def pid_file(tmp_path: Path) -> Path:
    return tmp_path / "pid"


def run(
    pool: ProcessPool,
    name: str,
    data: Any = None,
    timeout_ms: int | None = None,
    delivery: Delivery | None = None,
) -> Any:
    return pool.run(name, values_of(name, data), timeout_ms, delivery)


def delivery() -> Delivery:
    """What the parent holds of the job that its child runs."""
    return Delivery(b"1-1", "id-1", "n", b"", 0, 0, 0, None, None, None, b"")


def values_of(name: str, data: Any) -> JobValues:
    return ("id-1", name, decode.encode(data), 2, 1_700_000_000_000, 3, True)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


async def until(holds: Callable[[], bool], within_s: float = 10) -> None:
    async with asyncio.timeout(within_s * patience()):
        while not holds():  # noqa: ASYNC110 - other processes set no events
            await asyncio.sleep(0.005)


async def pid_in(path: Path) -> int:
    await until(path.exists)
    return read_pid(path)


def read_pid(path: Path) -> int:
    return int(path.read_text())


# --- what comes back


async def test_a_result_comes_back(start_pool: StartPool) -> None:
    pool = await start_pool("echo")

    assert await run(pool, "echo", {"a": [1, 2.5, None, "é", b"\x00"]}) == {
        "a": [1, 2.5, None, "é", b"\x00"]
    }


async def test_the_handler_sees_the_job(start_pool: StartPool) -> None:
    pool = await start_pool("describe")

    seen = await run(pool, "describe", {"order": 7})

    assert seen == ["id-1", "describe", {"order": 7}, 2, 1_700_000_000_000]


@pytest.mark.parametrize("name", ["count", "count_later"])
async def test_the_handler_knows_which_run_it_is(start_pool: StartPool, name: str) -> None:
    pool = await start_pool(name)

    assert await run(pool, name) == [3, True, True]


async def test_the_handler_runs_in_another_process(start_pool: StartPool) -> None:
    pool = await start_pool("pid")

    assert await run(pool, "pid") not in (os.getpid(), None)


async def test_a_lone_handler_answers_to_any_name(handlers: ModuleType) -> None:
    pool = ProcessPool(handlers.describe, 1)
    await pool.start()

    seen = [(await run(pool, name))[1] for name in ("one", "two", "")]

    assert seen == ["one", "two", ""]
    await pool.close(1)


async def test_a_name_without_a_handler_is_refused(start_pool: StartPool) -> None:
    pool = await start_pool("echo")

    with pytest.raises(SettingsError, match="'echo'"):
        await run(pool, "unheard-of")


async def test_static_and_class_methods_are_handlers_too(handlers: ModuleType) -> None:
    shelf = handlers.Shelf
    pool = ProcessPool({"static": shelf.on_the_shelf, "class": shelf.on_the_class}, 1)
    await pool.start()

    assert [await run(pool, "static"), await run(pool, "class")] == ["shelf", "Shelf"]
    await pool.close(1)


async def test_async_handlers_share_one_loop_per_child(start_pool: StartPool) -> None:
    pool = await start_pool("sleep_a_little")

    first, second = [await run(pool, "sleep_a_little", number) for number in (1, 2)]

    assert [first[0], second[0]] == [1, 2]
    assert first[1] == second[1]


async def test_each_call_has_a_context_of_its_own(start_pool: StartPool) -> None:
    pool = await start_pool("recolour")

    assert [await run(pool, "recolour") for _ in range(2)] == ["none", "none"]


async def test_a_payload_and_a_result_larger_than_the_pipe_pass(start_pool: StartPool) -> None:
    pool = await start_pool("echo")
    large = os.urandom(3 * 1024 * 1024)

    assert await run(pool, "echo", large) == large


async def test_more_calls_than_children_wait_for_their_turn(start_pool: StartPool) -> None:
    pool = await start_pool("echo", "pid", size=2)

    answers = await asyncio.gather(*(run(pool, "echo", number) for number in range(200)))
    pids = await asyncio.gather(*(run(pool, "pid") for _ in range(20)))

    assert answers == list(range(200))
    assert len(set(pids)) <= 2


# --- what a handler raises


async def test_an_exception_arrives_with_its_type_text_and_traceback(start_pool: StartPool) -> None:
    pool = await start_pool("fail")

    with pytest.raises(RemoteError) as caught:
        await run(pool, "fail", "boom")

    assert str(caught.value) == "ValueError: boom"
    assert (caught.value.type_name, caught.value.message) == ("ValueError", "boom")
    assert "def fail(job)" in caught.value.traceback_text


async def test_an_async_handler_fails_like_any_other(start_pool: StartPool) -> None:
    pool = await start_pool("fail_later")

    with pytest.raises(RemoteError) as caught:
        await run(pool, "fail_later", "key")

    assert caught.value.type_name == "KeyError"


async def test_a_subclass_of_unrecoverable_error_stays_unrecoverable(start_pool: StartPool) -> None:
    pool = await start_pool("fail_for_good")

    with pytest.raises(UnrecoverableError, match=r"^stolen$") as caught:
        await run(pool, "fail_for_good")

    assert isinstance(caught.value.__cause__, RemoteError)
    assert caught.value.__cause__.type_name == "CardStolen"


async def test_retry_later_keeps_its_delay(start_pool: StartPool) -> None:
    pool = await start_pool("come_back")

    with pytest.raises(RetryLater, match=r"^busy$") as caught:
        await run(pool, "come_back", 1_500)

    assert caught.value.delay_ms == 1_500


async def test_retry_later_with_a_delay_that_is_no_number_is_a_failure(
    start_pool: StartPool,
) -> None:
    pool = await start_pool("come_back")

    with pytest.raises(RemoteError) as caught:
        await run(pool, "come_back", "soon")

    assert caught.value.type_name == "RetryLater"


async def test_a_result_without_a_messagepack_form_is_an_error(start_pool: StartPool) -> None:
    pool = await start_pool("return_a_set")

    with pytest.raises(RemoteError) as caught:
        await run(pool, "return_a_set")

    assert caught.value.type_name == "EncodeError"
    assert "result is a set; convert it first" in str(caught.value)


async def test_a_result_longer_than_a_frame_is_an_error(start_pool: StartPool) -> None:
    pool = await start_pool("return_bytes")

    with pytest.raises(RemoteError, match="at most"):
        await run(pool, "return_bytes", 65 * 1024 * 1024)


async def test_a_payload_that_does_not_decode_is_an_error(start_pool: StartPool) -> None:
    pool = await start_pool("echo")

    with pytest.raises(DecodeError) as caught:
        await pool.run("echo", ("id-1", "echo", b"\xc1", 0, 0, 1, False))

    assert isinstance(caught.value.__cause__, RemoteError)


async def test_error_texts_are_capped_and_always_printable(start_pool: StartPool) -> None:
    pool = await start_pool("fail", "fail_silently")

    with pytest.raises(RemoteError) as long:
        await run(pool, "fail", "x" * 100_000)
    with pytest.raises(RemoteError) as silent:
        await run(pool, "fail_silently")

    assert len(long.value.message) == TEXT_BYTES_MAX
    assert "in fail\n" in long.value.traceback_text
    assert len(long.value.traceback_text) < TEXT_BYTES_MAX
    assert silent.value.type_name == "Unprintable"


async def test_a_system_exit_fails_its_job_and_the_child_lives_on(start_pool: StartPool) -> None:
    pool = await start_pool("leave", "pid")
    pid = await run(pool, "pid")

    with pytest.raises(RemoteError, match=r"^SystemExit: 4"):
        await run(pool, "leave")

    assert await run(pool, "pid") == pid


# --- a death costs one job


@pytest.mark.parametrize(
    ("name", "exit_code"), [("vanish", 7), ("crash", -signal.SIGSEGV)], ids=["exit", "segfault"]
)
async def test_a_child_that_dies_ends_its_own_job_and_is_replaced(
    start_pool: StartPool, name: str, exit_code: int
) -> None:
    pool = await start_pool(name, "echo")

    with pytest.raises(ChildDied) as caught:
        await run(pool, name)

    assert caught.value.exit_code == exit_code
    assert await run(pool, "echo", "next") == "next"


async def test_a_killed_child_leaves_the_others_alone(
    start_pool: StartPool, pid_file: Path, tmp_path: Path
) -> None:
    pool = await start_pool("nap", "short_nap", size=2)
    doomed = asyncio.create_task(run(pool, "nap", str(pid_file)))
    neighbour = asyncio.create_task(run(pool, "short_nap", str(tmp_path / "neighbour")))
    os.kill(await pid_in(pid_file), signal.SIGKILL)

    with pytest.raises(ChildDied, match="SIGKILL") as caught:
        await doomed

    assert caught.value.exit_code == -signal.SIGKILL
    assert await neighbour == "rested"


async def test_every_slot_is_refilled_after_every_child_died(start_pool: StartPool) -> None:
    pool = await start_pool("vanish", "echo", size=2)

    deaths = await asyncio.gather(*(run(pool, "vanish") for _ in range(6)), return_exceptions=True)
    answers = await asyncio.gather(*(run(pool, "echo", number) for number in range(6)))

    assert [type(death) for death in deaths] == [ChildDied] * 6
    assert answers == [0, 1, 2, 3, 4, 5]


async def test_a_child_killed_while_idle_costs_no_job(start_pool: StartPool) -> None:
    pool = await start_pool("pid")
    pid = await run(pool, "pid")
    os.kill(pid, signal.SIGKILL)
    await until(lambda: not is_running(pid))
    await asyncio.sleep(0.05)

    assert await run(pool, "pid") != pid


async def test_a_slot_outlives_a_moment_in_which_no_process_can_start(
    start_pool: StartPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = await start_pool("vanish", "echo")
    with monkeypatch.context() as famine:
        famine.setattr(subprocess, "Popen", no_more_processes)
        with pytest.raises(ChildDied):
            await run(pool, "vanish")
        with pytest.raises(OSError, match="no more"):
            await run(pool, "echo")

    assert await run(pool, "echo", "next") == "next"


def no_more_processes(*_arguments: Any, **_options: Any) -> None:
    raise OSError("no more processes")


async def test_programs_end_with_a_handler_that_died(start_pool: StartPool, pid_file: Path) -> None:
    pool = await start_pool("run_a_program")
    call = asyncio.create_task(run(pool, "run_a_program", str(pid_file)))
    os.kill(await pid_in(pid_file), signal.SIGKILL)

    with pytest.raises(ChildDied):
        await call
    await until_program_ended(pid_file)


async def test_a_grandchild_that_holds_the_pipe_does_not_hide_a_death(
    start_pool: StartPool,
) -> None:
    pool = await start_pool("fork_and_vanish")
    started_s = time.monotonic()

    with pytest.raises(ChildDied) as caught:
        await run(pool, "fork_and_vanish")

    assert caught.value.exit_code == 7
    assert time.monotonic() - started_s < 1.5 * patience()


async def test_a_forked_copy_of_a_handler_never_answers(start_pool: StartPool) -> None:
    pool = await start_pool("fork_and_return", "echo")

    assert await run(pool, "fork_and_return") == "parent"
    assert [await run(pool, "echo", number) for number in range(3)] == [0, 1, 2]


# --- deadlines and cancelling


@pytest.mark.parametrize("name", ["nap", "spin", "nap_deaf", "nap_and_swallow"])
async def test_a_handler_past_its_deadline_is_stopped_whatever_it_does(
    start_pool: StartPool, pid_file: Path, name: str
) -> None:
    pool = await start_pool(name, "echo")
    started_s = time.monotonic()

    with pytest.raises(JobTimeout) as caught:
        await run(pool, name, str(pid_file), timeout_ms=300)

    assert 0.3 <= time.monotonic() - started_s < 1.5 * patience()
    assert caught.value.timeout_ms == 300
    await until(lambda: not is_running(int(pid_file.read_text())), within_s=1)
    assert await run(pool, "echo", "next") == "next"


async def test_a_handler_within_its_deadline_is_left_alone(
    start_pool: StartPool, pid_file: Path
) -> None:
    pool = await start_pool("short_nap", "pid")
    pid = await run(pool, "pid")

    assert await run(pool, "short_nap", str(pid_file), timeout_ms=5_000) == "rested"
    assert await run(pool, "pid") == pid


async def test_programs_a_handler_started_end_with_it(
    start_pool: StartPool, pid_file: Path
) -> None:
    pool = await start_pool("run_a_program")

    with pytest.raises(JobTimeout):
        await run(pool, "run_a_program", str(pid_file), timeout_ms=300)

    await until_program_ended(pid_file)


async def until_program_ended(pid_file: Path) -> None:
    program_pid = read_pid(pid_file.with_suffix(".program"))
    await until(lambda: not is_running(program_pid), within_s=2)


async def test_cancelling_a_call_kills_its_child(start_pool: StartPool, pid_file: Path) -> None:
    pool = await start_pool("nap", "echo")
    call = asyncio.create_task(run(pool, "nap", str(pid_file)))
    pid = await pid_in(pid_file)
    call.cancel()

    with pytest.raises(asyncio.CancelledError):
        await call
    await until(lambda: not is_running(pid), within_s=1)
    assert await run(pool, "echo", "next") == "next"


async def test_cancelling_a_call_that_waits_for_its_turn_harms_nobody(
    start_pool: StartPool, pid_file: Path
) -> None:
    pool = await start_pool("short_nap", "echo")
    running = asyncio.create_task(run(pool, "short_nap", str(pid_file)))
    await pid_in(pid_file)
    waiting = asyncio.create_task(run(pool, "echo"))
    await asyncio.sleep(0)
    waiting.cancel()

    assert await running == "rested"
    assert await run(pool, "echo", "next") == "next"


async def test_cancelling_a_call_to_a_child_that_still_starts_loses_no_slot(
    start_pool: StartPool,
) -> None:
    pool = await start_pool("vanish", "echo")
    with pytest.raises(ChildDied):
        await run(pool, "vanish")
    call = asyncio.create_task(run(pool, "echo"))
    await asyncio.sleep(0.01)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call

    assert await run(pool, "echo", "next") == "next"


# --- closing


async def test_close_lets_a_running_call_end_within_the_grace(
    start_pool: StartPool, pid_file: Path
) -> None:
    pool = await start_pool("short_nap")
    call = asyncio.create_task(run(pool, "short_nap", str(pid_file)))
    pid = await pid_in(pid_file)
    await pool.close(10)

    assert await call == "rested"
    assert not is_running(pid)


async def test_close_ends_children_after_the_grace_whatever_they_do(
    start_pool: StartPool, pid_file: Path
) -> None:
    pool = await start_pool("nap_deaf")
    call = asyncio.create_task(run(pool, "nap_deaf", str(pid_file)))
    pid = await pid_in(pid_file)
    started_s = time.monotonic()
    await pool.close(0.1)

    assert time.monotonic() - started_s < 1.5 * patience()
    assert not is_running(pid)
    with pytest.raises(ChildDied):
        await call


async def test_children_end_like_programs_when_the_pool_closes(
    start_pool: StartPool, pid_file: Path
) -> None:
    pool = await start_pool("say_goodbye")
    await run(pool, "say_goodbye", str(pid_file))
    await pool.close(10)

    assert await pid_in(pid_file)


async def test_a_closed_pool_refuses_calls_and_may_be_closed_again(start_pool: StartPool) -> None:
    pool = await start_pool("echo")
    await pool.close(1)
    await pool.close(1)

    with pytest.raises(RuntimeError, match="closed"):
        await run(pool, "echo")


async def test_a_pool_refuses_to_work_in_a_forked_process(
    start_pool: StartPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = await start_pool("echo")
    with monkeypatch.context() as fork:
        fork.setattr(os, "getpid", lambda: -1)
        with pytest.raises(RuntimeError, match="fork"):
            await run(pool, "echo")


# --- which handlers, and where they are found


def top_level(job: object) -> None: ...


def refused_handlers() -> list[Any]:
    def local(job: object) -> None: ...

    class Machine:
        def __call__(self, job: object) -> None: ...

        def method(self, job: object) -> None: ...

    return [
        pytest.param(lambda _job: None, "<lambda>", id="lambda"),
        pytest.param(local, "local", id="local function"),
        pytest.param(functools.partial(top_level), "partial", id="partial"),
        pytest.param(Machine(), "Machine", id="callable object"),
        pytest.param(Machine().method, "method", id="bound method"),
    ]


@pytest.mark.parametrize(("handler", "name"), refused_handlers())
def test_a_handler_a_fresh_interpreter_cannot_import_is_refused(handler: Any, name: str) -> None:
    with pytest.raises(SettingsError, match=f"charge.*{name}.*top level of a module"):
        ProcessPool({"charge": handler}, 1)


def test_a_handler_of_a_module_without_a_source_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = ModuleType("made_up")
    exec("def handler(job): ...", module.__dict__)
    monkeypatch.setitem(sys.modules, "made_up", module)

    with pytest.raises(SettingsError, match="made_up:handler"):
        ProcessPool(module.handler, 1)


@pytest.mark.parametrize("size", [0, -1])
def test_a_pool_needs_a_child(size: int) -> None:
    with pytest.raises(SettingsError, match="at least 1"):
        ProcessPool({}, size)


async def test_an_import_that_fails_in_the_child_stops_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "moody_handlers.py"
    source.write_text("def handler(job): ...")
    monkeypatch.syspath_prepend(tmp_path)
    pool = ProcessPool(importlib.import_module("moody_handlers").handler, 2)
    source.write_text("raise ImportError('not today') # and longer than it was")

    with pytest.raises(SettingsError, match="ImportError: not today"):
        await pool.start()


async def test_children_import_as_their_parent_does_and_hide_how_they_were_helped(
    start_pool: StartPool,
) -> None:
    pool = await start_pool("python_path", "import_path", "argv")

    assert await run(pool, "python_path") == os.environ.get("PYTHONPATH")
    assert await run(pool, "import_path") == sys.path
    assert await run(pool, "argv") == sys.argv


# --- whole programs

SCRIPT = """
import asyncio, os, sys, time
from chasquimq.engine.process_pool.pool import ProcessPool
from chasquimq.store.consumer import decode

def handler(job):
    print("handler says", job.data, flush=False)
    print("and complains", file=sys.stderr)
    return [__name__, os.getpid()]

def nap(job):
    while True:
        time.sleep(0.01)

def values(data):
    return ("id-1", "job", decode.encode(data), 0, 0, 1, False)

async def main(mode):
    pool = ProcessPool({"handler": handler, "nap": nap}, 2)
    await pool.start()
    name, pid = await pool.run("handler", values("hello"))
    if mode == "once":
        await pool.close(5)
        print("answered by", name, flush=True)
        return
    pids = [child.pid for child in pool._children]
    calls = [asyncio.create_task(pool.run("nap", values(1)))]
    await asyncio.sleep(0.1)
    print("pids", *pids, flush=True)
    await asyncio.sleep(30)

if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "my-script"
    path.write_text(SCRIPT)
    return path


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def run_program(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        env=environment(),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_a_handler_of_a_script_is_loaded_from_the_scripts_path(script: Path) -> None:
    ended = run_program(script, "once", cwd=Path("/"))

    assert "answered by __chasqui_script__" in ended.stdout, ended.stderr


def test_a_handler_of_a_module_run_with_m_is_imported_by_its_name(
    script: Path, tmp_path: Path
) -> None:
    script.rename(tmp_path / "my_module.py")

    ended = run_program("-m", "my_module", "once", cwd=tmp_path)

    assert "answered by my_module" in ended.stdout, ended.stderr


def test_a_handler_typed_at_a_prompt_is_refused() -> None:
    code = "from chasquimq.engine.process_pool.pool import ProcessPool\ndef f(job): ...\nProcessPool(f, 1)"

    ended = run_program("-c", code)

    assert "SettingsError" in ended.stderr
    assert "__main__:f" in ended.stderr


def test_what_a_handler_prints_passes_through(script: Path) -> None:
    ended = run_program(script, "once")

    assert "handler says hello" in ended.stdout
    assert "and complains" in ended.stderr


def test_a_module_in_the_working_directory_does_not_stand_in_for_ours(
    script: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "signal.py").write_text("raise ImportError('the wrong signal')")

    ended = run_program(script, "once", cwd=elsewhere)

    assert "answered by" in ended.stdout, ended.stderr


async def pids_of_napping(parent: asyncio.subprocess.Process) -> list[int]:
    assert parent.stdout is not None
    async with asyncio.timeout(20):
        while not (line := await parent.stdout.readline()).startswith(b"pids"):
            assert line, "the parent ended before its handler ran"
    return [int(word) for word in line.split()[1:]]


@pytest.fixture
async def napping(script: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, list[int]]]:
    parent = await asyncio.create_subprocess_exec(
        sys.executable, script, "nap", env=environment(), stdout=asyncio.subprocess.PIPE
    )
    try:
        yield parent, await pids_of_napping(parent)
    finally:
        if parent.returncode is None:
            parent.kill()
        # Its pipe is closed in this loop, not in the next one that collects it.
        await parent.communicate()


async def test_children_busy_and_idle_die_with_a_killed_parent(
    napping: tuple[asyncio.subprocess.Process, list[int]],
) -> None:
    parent, pids = napping
    alive_before = [is_running(pid) for pid in pids]

    parent.kill()

    assert alive_before == [True, True]
    await until(lambda: not any(is_running(pid) for pid in pids), within_s=2)


async def test_children_leave_ctrl_c_to_the_parent(
    napping: tuple[asyncio.subprocess.Process, list[int]],
) -> None:
    _, pids = napping

    for pid in pids:
        os.kill(pid, signal.SIGINT)
    await asyncio.sleep(0.1)

    assert all(is_running(pid) for pid in pids)


async def test_a_busy_child_leaves_when_its_pipe_ends_though_the_parent_lives(
    handlers: ModuleType, pid_file: Path
) -> None:
    child, ours = start_child()
    ours.sendall(hello_frame({"spin": HandlerAddress("pool_handlers", "spin")}))
    await asyncio.to_thread(read_frame, ours)
    ours.sendall(encode_frame(HandlerCall("spin", values_of("spin", str(pid_file)))))
    await pid_in(pid_file)
    ours.close()

    assert await asyncio.to_thread(child.wait, 5) == ORPHAN_EXIT_CODE


def start_child() -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, theirs = socket.socketpair()
    with theirs:
        command = [
            sys.executable,
            "-m",
            "chasquimq.engine.process_pool.child",
            str(theirs.fileno()),
        ]
        return subprocess.Popen(command, pass_fds=(theirs.fileno(),), env=environment()), ours


# --- the context of a job, on both sides of the socket


@pytest.fixture
def received() -> list[tuple[str, Any]]:
    return []


@pytest.fixture
def context(received: list[tuple[str, Any]]) -> WorkerContext:
    """The worker's end; what is received has the id of its job."""
    context = WorkerContext({})
    context.on_report("note", lambda one, value: received.append((one.job_id, value)))
    return context


async def test_what_a_handler_reports_arrives_at_its_worker_before_its_end(
    start_pool: StartPool, context: WorkerContext, received: list[tuple[str, Any]]
) -> None:
    pool = await start_pool("report", context=context)
    notes = [["note", {"done": 1}], ["unknown", 2], ["note", [b"bytes", None]]]

    assert await run(pool, "report", notes, delivery=delivery()) == "reported"

    assert received == [("id-1", {"done": 1}), ("id-1", [b"bytes", None])]


async def test_reports_reach_a_worker_that_runs_the_handler_itself(
    context: WorkerContext, received: list[tuple[str, Any]]
) -> None:
    context.report(delivery(), "note", {"done": 1})

    assert received == [("id-1", {"done": 1})]


async def test_a_receiver_that_raises_harms_no_job(
    start_pool: StartPool, context: WorkerContext
) -> None:
    context.on_report("note", lambda *_: 1 / 0)
    pool = await start_pool("report", context=context)

    assert await run(pool, "report", [["note", 1]], delivery=delivery()) == "reported"


async def test_what_a_thread_reports_after_the_end_of_its_job_goes_nowhere(
    start_pool: StartPool,
    context: WorkerContext,
    received: list[tuple[str, Any]],
    pid_file: Path,
) -> None:
    pool = await start_pool("report_later", "echo", context=context)
    await run(pool, "report_later", str(pid_file), delivery=delivery())
    await pid_in(pid_file)

    assert await run(pool, "echo", "next", delivery=delivery()) == "next"
    assert received == []


async def test_a_forked_copy_reports_nothing(
    start_pool: StartPool, context: WorkerContext, received: list[tuple[str, Any]]
) -> None:
    pool = await start_pool("fork_and_report", context=context)

    await run(pool, "fork_and_report", delivery=delivery())

    assert received == [("id-1", "child")]


async def test_a_handler_learns_that_its_lease_was_lost(
    start_pool: StartPool, context: WorkerContext, pid_file: Path
) -> None:
    pool = await start_pool("wait_for_loss", context=context)
    held = delivery()
    running = asyncio.ensure_future(run(pool, "wait_for_loss", str(pid_file), delivery=held))
    await pid_in(pid_file)

    context.lease_lost(held)

    assert await running


async def test_a_lease_that_was_lost_before_the_start_is_known_in_the_child(
    start_pool: StartPool, context: WorkerContext, pid_file: Path
) -> None:
    pool = await start_pool("wait_for_loss", context=context)
    held = delivery()
    held.is_lease_lost = True

    assert await run(pool, "wait_for_loss", str(pid_file), delivery=held)


async def test_a_loss_that_no_handler_asked_about_is_not_the_next_jobs(
    start_pool: StartPool, context: WorkerContext, pid_file: Path
) -> None:
    pool = await start_pool("short_nap", "has_lost", context=context)
    held = delivery()
    napping = asyncio.ensure_future(run(pool, "short_nap", str(pid_file), delivery=held))
    await pid_in(pid_file)
    context.lease_lost(held)
    await napping

    assert await run(pool, "has_lost", delivery=delivery()) is False


# --- the other event loop


def test_the_pool_keeps_its_promises_on_uvloop(handlers: ModuleType, pid_file: Path) -> None:
    uvloop = pytest.importorskip("uvloop")

    async def main() -> list[Any]:
        pool = ProcessPool({name: getattr(handlers, name) for name in ("echo", "vanish", "nap")}, 2)
        await pool.start()
        large = await run(pool, "echo", b"x" * 3_000_000)
        failures = await asyncio.gather(
            run(pool, "vanish"),
            run(pool, "nap", str(pid_file), timeout_ms=100),
            return_exceptions=True,
        )
        await pool.close(2)
        return [len(large), *map(type, failures)]

    assert uvloop.run(main()) == [3_000_000, ChildDied, JobTimeout]
