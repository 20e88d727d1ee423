"""Tracebacks of dead jobs: the DLQ says where the last attempt failed, wherever that was."""

from __future__ import annotations

import asyncio
import importlib
import sys
import time
import zlib
from urllib.parse import urlsplit

import pytest

from chasquimq import Worker
from chasquimq.errors import RetryLater, SettingsError, UnrecoverableError
from chasquimq.settings import RetrySettings
from chasquimq.wire.stream_entry import decode_dlq
from support.waiting import eventually
from support.workers import RunningWorker

SECRET = "hunter2"
SOON = RetrySettings(initial_backoff_ms=1, max_backoff_ms=1, jitter_ms=0)
CHARS_MAX = 16 * 1024
CHILD_HANDLERS = """
from chasquimq import UnrecoverableError

def look_up(key):
    return {}[key]

def charge(job):
    try:
        look_up(job.data)
    except KeyError as cause:
        raise ValueError(f"password {job.data} refused") from cause

def give_up(job):
    raise UnrecoverableError("no such card")

async def charge_later(job):
    charge(job)
"""


def look_up(key):
    return {}[key]


def charge(job):
    try:
        look_up(job.data)
    except KeyError as cause:
        raise ValueError(f"password {job.data} refused") from cause


async def charge_async(job):
    charge(job)


async def charge_too(job):
    charge(job)


async def charge_after_a_pause(job):
    await asyncio.sleep(0)
    charge(job)


@pytest.fixture
def child_handlers(tmp_path, monkeypatch):
    (tmp_path / "charging_handlers.py").write_text(CHILD_HANDLERS)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("charging_handlers")
    del sys.modules["charging_handlers"]


@pytest.fixture
def bury(queue, running_worker):
    """Run a handler that fails until its jobs are dead; answers the entries of the DLQ."""

    async def run(handler, *data, **options):
        running = await running_worker(handler, **{"max_attempts": 1, "retry": SOON} | options)
        for one in data or (SECRET,):
            await queue.add("charge", one)
        count = max(1, len(data))
        await eventually(lambda: running.worker.health().buried == count, what="the burials")
        await running.stop()
        return await queue.peek_dlq()

    return run


# ── what is kept ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "handler", [charge, charge_async, charge_after_a_pause], ids=["thread", "at once", "waiting"]
)
async def test_the_dlq_keeps_the_traceback_of_a_dead_job(bury, handler):
    (letter,) = await bury(handler)

    lines = letter["traceback"].splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == f"ValueError: password {SECRET} refused"
    assert "    return {}[key]" in lines
    assert "The above exception was the direct cause of the following exception:" in lines
    assert "in look_up" in letter["traceback"]


async def test_the_data_of_a_dead_job_is_shown_with_it(bury):
    (letter,) = await bury(charge)

    assert letter["data"] == SECRET


async def test_how_a_handler_came_to_be_called_is_left_out(bury):
    (letter,) = await bury(charge)

    assert "/chasquimq/engine/" not in letter["traceback"]
    assert "/asyncio/" not in letter["traceback"]


@pytest.mark.parametrize("name", ["charge", "charge_later"])
async def test_a_traceback_of_a_child_process_reaches_the_dlq(bury, child_handlers, name):
    handlers = {"charge": getattr(child_handlers, name)}
    (letter,) = await bury(handlers, pool="process", pool_size=1)

    assert "charging_handlers.py" in letter["traceback"]
    assert "    return {}[key]" in letter["traceback"].splitlines()
    assert letter["traceback"].splitlines()[-1] == f"ValueError: password {SECRET} refused"
    assert "/chasquimq/engine/" not in letter["traceback"]


async def test_an_error_that_crosses_processes_as_its_own_type_keeps_its_traceback(
    bury, child_handlers
):
    (letter,) = await bury(child_handlers.give_up, pool="process", pool_size=1)

    assert letter["reason"] == "unrecoverable"
    lines = letter["traceback"].splitlines()
    assert '    raise UnrecoverableError("no such card")' in lines
    assert lines[-1].endswith("UnrecoverableError: no such card")
    assert letter["traceback"].count("no such card") == 2


async def test_each_job_of_a_batch_has_the_traceback_of_the_run(bury):
    async def charge_all(jobs):
        look_up("missing")

    letters = await bury(charge_all, 1, 2, 3, batch=(3, 200))

    assert len(letters) == 3
    assert all("in look_up" in letter["traceback"] for letter in letters)
    assert len({letter["traceback"] for letter in letters}) == 1


async def test_an_error_that_was_returned_and_never_raised_has_no_traceback(bury):
    async def charge_all(jobs):
        return [ValueError("no card") for _ in jobs]

    (letter,) = await bury(charge_all, 1, batch=(1, 10))

    assert (letter["error"], letter["traceback"]) == ("ValueError: no card", None)


async def test_a_job_whose_time_was_over_tells_where_it_was(bury):
    async def slow(job):
        await asyncio.sleep(60)

    (letter,) = await bury(slow, timeout_ms=100)

    assert "    await asyncio.sleep(60)" in letter["traceback"].splitlines()
    assert "JobTimeout" in letter["traceback"].splitlines()[-1]


async def test_every_member_of_an_exception_group_is_told(bury):
    async def handler(job):
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(charge_async(job))
            tasks.create_task(charge_too(job))

    (letter,) = await bury(handler)

    assert (
        "ExceptionGroup: unhandled errors in a TaskGroup (2 sub-exceptions)" in letter["traceback"]
    )
    assert "error 2 of 2 in the group:" in letter["traceback"]
    assert "in charge_too" in letter["traceback"]


async def test_an_error_in_the_handling_of_another_tells_both(bury):
    async def handler(job):
        try:
            look_up("card")
        except KeyError:
            look_up("other")

    (letter,) = await bury(handler)

    assert "During handling of the above exception" in letter["traceback"]
    assert "KeyError: 'card'" in letter["traceback"]
    assert "KeyError: 'other'" in letter["traceback"]


async def test_notes_of_an_error_are_told(bury):
    async def handler(job):
        error = ValueError("no card")
        error.add_note("ask the bank")
        raise error

    (letter,) = await bury(handler)

    assert letter["traceback"].splitlines()[-2:] == ["ValueError: no card", "ask the bank"]


# ── what is not ───────────────────────────────────────────────────────────────────────────────


async def test_only_the_last_attempt_writes_a_traceback(queue, raw, running_worker):
    running = await running_worker(charge, max_attempts=2)
    job = await queue.add("charge", SECRET, backoff=60_000)
    await eventually(lambda: running.worker.health().retried == 1)

    (member,) = await raw("ZRANGE", raw.keys.delayed, 0, -1)
    assert b"Traceback" not in member
    assert job.id.encode() in member


async def test_a_snooze_and_a_job_without_a_handler_have_no_traceback(queue, raw, running_worker):
    async def later(job):
        raise RetryLater(60_000, "busy")

    running = await running_worker({"later": later}, retry=RetrySettings(unknown_name_for_ms=0))
    await queue.add("later", 1)
    await queue.add("misspelt", 1)
    (letter,) = await eventually(queue.peek_dlq)
    await eventually(lambda: running.worker.health().retried == 1)

    assert (letter["reason"], letter["traceback"]) == ("unknown_name", None)


async def test_a_worker_may_keep_no_tracebacks(bury):
    (letter,) = await bury(charge, keep_tracebacks=False)

    assert letter["error"] == f"ValueError: password {SECRET} refused"
    assert letter["traceback"] is None


@pytest.mark.parametrize("bad", ["no", 0, None])
def test_a_setting_that_is_neither_true_nor_false_is_refused(bad):
    with pytest.raises(SettingsError, match="keep_tracebacks"):
        Worker("q", charge, keep_tracebacks=bad)


# ── bounds ────────────────────────────────────────────────────────────────────────────────────


def deep(n):
    if n:
        deep(n - 1)
    look_up("bottom")


async def test_a_recursion_without_end_is_told_in_a_few_lines(bury):
    async def handler(job):
        def endless():
            endless()

        endless()

    (letter,) = await bury(handler)

    assert "more times]" in letter["traceback"]
    assert "RecursionError" in letter["traceback"].splitlines()[-1]
    assert len(letter["traceback"].splitlines()) < 20


async def test_a_long_message_leaves_room_for_where_it_happened(bury):
    async def handler(job):
        raise ValueError("x" * 1_000_000)

    (letter,) = await bury(handler)

    assert len(letter["traceback"]) <= CHARS_MAX
    assert "in handler" in letter["traceback"]
    assert "ValueError: xxx" in letter["traceback"]


def chain_of(count):
    try:
        if count:
            chain_of(count - 1)
    except ValueError as cause:
        raise ValueError(f"{count} " + "y" * 3_000) from cause
    raise ValueError("the first")


async def test_a_long_chain_keeps_its_end(bury):
    async def handler(job):
        chain_of(100)

    (letter,) = await bury(handler)

    assert len(letter["traceback"]) <= CHARS_MAX
    assert "characters left out]" in letter["traceback"]
    assert letter["traceback"].splitlines()[-1].startswith("ValueError: 100 yyy")


async def test_a_group_of_thousands_is_bounded(bury):
    async def handler(job):
        raise ExceptionGroup("all", [ValueError(f"one {at}") for at in range(5_000)])

    (letter,) = await bury(handler)

    assert len(letter["traceback"]) <= CHARS_MAX
    assert "ExceptionGroup: all (5000 sub-exceptions)" in letter["traceback"]
    assert "errors more" in letter["traceback"]


async def test_a_cycle_of_causes_ends(bury):
    async def handler(job):
        first, second = ValueError("first"), ValueError("second")
        first.__cause__, second.__cause__ = second, first
        raise first

    (letter,) = await bury(handler)

    assert letter["traceback"].splitlines()[-1] == "ValueError: first"


class Silent(Exception):
    def __str__(self):
        raise LookupError("nothing to say")


class Hostile(Exception):
    @property
    def __cause__(self):
        raise LookupError("do not look")


class Unwritable(Exception):
    def __str__(self):
        return "half a pair \ud800 and a bell \a"


@pytest.mark.parametrize(
    ("error_kind", "words"),
    [
        (Silent, "Silent: <exception str() failed>"),
        (Hostile, "<no traceback: the exception cannot be formatted>"),
        (Unwritable, "half a pair \\ud800 and a bell \a"),
    ],
)
async def test_an_error_that_resists_being_looked_at_costs_no_job(bury, error_kind, words):
    async def handler(job):
        raise error_kind

    (letter,) = await bury(handler)

    assert letter["reason"] == "retries_exhausted"
    assert words in letter["traceback"]


# ── redaction ─────────────────────────────────────────────────────────────────────────────────


def hide(error_type, message):
    return message.replace(SECRET, "***")


async def literal(job):
    try:
        look_up("hunter2")
    except KeyError as cause:
        error = ValueError("password hunter2 refused")
        error.add_note("it was hunter2")
        raise error from cause


async def in_a_group(job):
    raise ExceptionGroup("hunter2", [ValueError("hunter2"), KeyError("hunter2")])


@pytest.mark.parametrize("handler", [literal, in_a_group, charge, charge_after_a_pause])
async def test_what_is_redacted_is_in_no_traceback(bury, handler):
    (letter,) = await bury(handler, redact=hide)

    assert SECRET not in letter["traceback"]
    assert "***" in letter["traceback"]
    assert 'test_tracebacks.py", line' in letter["traceback"]


async def test_what_is_redacted_is_in_no_traceback_of_a_child_process(bury, child_handlers):
    (letter,) = await bury(child_handlers.charge, redact=hide, pool="process", pool_size=1)

    lines = letter["traceback"].splitlines()
    assert SECRET not in letter["traceback"]
    assert "KeyError: '***'" in lines
    assert lines[-1] == "ValueError: password *** refused"
    assert any(line.endswith("in look_up") for line in lines)


async def test_a_hook_that_fails_withholds_every_word(bury):
    def fails(error_type, message):
        raise LookupError(message)

    (letter,) = await bury(literal, redact=fails)

    assert SECRET not in letter["traceback"]
    assert "ValueError: <withheld" in letter["traceback"]


# ── its way ───────────────────────────────────────────────────────────────────────────────────


async def test_a_replay_leaves_the_traceback_behind(bury, queue, raw):
    await bury(charge)

    assert await queue.replay_dlq(edit=str.upper) == 1

    ((_, fields),) = await raw.entries(raw.keys.stream)
    assert set(fields) == {b"d", b"n"}
    assert b"Traceback" not in fields[b"d"]


async def refusing_proxy(url: str, word: bytes) -> tuple[asyncio.Server, str]:
    """A server in between, as hosters have them: it refuses what holds the word."""
    there = urlsplit(url)

    async def serve(reader, writer):
        if there.hostname:
            above, below = await asyncio.open_connection(there.hostname, there.port)
        else:
            above, below = await asyncio.open_unix_connection(there.path)

        async def ask():
            while chunk := await reader.read(1 << 20):
                if word in chunk:
                    writer.write(b"-ERR the request is too large\r\n")
                else:
                    below.write(chunk)
            below.close()

        async def answer():
            while chunk := await above.read(1 << 20):
                writer.write(chunk)
            writer.close()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(ask())
            tasks.create_task(answer())

    proxy = await asyncio.start_server(serve, "127.0.0.1", 0)
    return proxy, f"redis://127.0.0.1:{proxy.sockets[0].getsockname()[1]}"


async def test_a_burial_that_is_refused_for_its_traceback_goes_without_it(
    url, queue, queue_name, caplog
):
    proxy, refusing_url = await refusing_proxy(url, b"\r\ntraceback\r\n")
    running = RunningWorker(Worker(queue_name, charge, redis_url=refusing_url, max_attempts=1))
    await running.until_consuming()
    job = await queue.add("charge", SECRET)

    (letter,) = await eventually(queue.peek_dlq)
    await running.stop()
    proxy.close()

    assert (letter["job_id"], letter["traceback"]) == (job.id, None)
    assert letter["error"] == f"ValueError: password {SECRET} refused"
    assert f"the traceback of job {job.id} is left out" in caplog.text


async def test_a_long_traceback_is_compressed(bury, raw):
    async def handler(job):
        chain_of(10)

    (letter,) = await bury(handler)

    (fields,) = await raw.dlq()
    assert len(fields[b"traceback"]) * 3 < len(letter["traceback"])


async def test_a_short_traceback_is_written_as_it_is(bury, raw):
    async def handler(job):
        raise ValueError("no card")

    (letter,) = await bury(handler)

    (fields,) = await raw.dlq()
    assert fields[b"traceback"].decode() == letter["traceback"]


@pytest.mark.parametrize("raw_bytes", [b"x", b"x\x9c\x00", b"\xff\xfe", b"", b"x\x01" + b"\0" * 9])
def test_a_traceback_of_any_bytes_is_read(raw_bytes):
    entry = decode_dlq("1-1", [b"d", b"", b"traceback", raw_bytes])

    assert isinstance(entry.traceback_text, str)


def test_a_traceback_that_would_swell_is_cut():
    bomb = zlib.compress(b"A" * 50_000_000, 9)

    assert len(decode_dlq("1-1", [b"traceback", bomb]).traceback_text) <= 64 * 1024


async def test_forming_tracebacks_does_not_hold_up_the_worker(bury):
    started_s = time.monotonic()

    letters = await bury(charge_async, *range(500))

    print(f"500 burials in {time.monotonic() - started_s:.2f} s")
    assert all(letter["traceback"] for letter in letters)


async def test_unrecoverable_is_kept_with_its_traceback(bury):
    async def handler(job):
        raise UnrecoverableError("no such card")

    (letter,) = await bury(handler, max_attempts=25)

    assert "in handler" in letter["traceback"]


class HasTrace(Exception):
    """An error with an attribute of the name that errors of child processes use."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.trace = ["mine"]


async def test_an_error_with_a_trace_of_its_own_is_buried_as_any_other(queue, running_worker):
    async def fail(job):
        raise HasTrace("boom")

    await running_worker(fail, max_attempts=1)
    await queue.add("n", None)

    async def letters():
        return await queue.peek_dlq()

    [dead] = await eventually(letters)
    assert (dead["reason"], dead["error"]) == ("retries_exhausted", "HasTrace: boom")
    assert "HasTrace: boom" in dead["traceback"]
