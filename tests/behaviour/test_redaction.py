"""Redaction: what a hook takes out of an error is told nowhere, and a bad hook harms no job."""

from __future__ import annotations

import asyncio
import importlib
import logging
import re
import sys

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from chasquimq import Worker
from chasquimq.engine.tracebacks import WITHHELD
from chasquimq.errors import RetryLater, SettingsError
from chasquimq.model.delivery import fingerprint
from chasquimq.settings import RetrySettings
from support.spans import traced_to
from support.waiting import eventually

SECRET = "hunter2"
SOON = RetrySettings(initial_backoff_ms=1, max_backoff_ms=1, jitter_ms=0)
CHILD_HANDLERS = """
def leak(job):
    raise ValueError(f"password {job.data} refused")
"""


def hide(error_type, message):
    return re.sub(r"password \w+", "password ***", message)


async def leak(job):
    try:
        {}[job.data]
    except KeyError as cause:
        raise ValueError(f"password {job.data} refused") from cause


@pytest.fixture
def spans():
    return InMemorySpanExporter()


@pytest.fixture
def tracing(spans):
    return traced_to(spans)


@pytest.fixture
def child_handlers(tmp_path, monkeypatch):
    (tmp_path / "leaking_handlers.py").write_text(CHILD_HANDLERS)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("leaking_handlers")
    del sys.modules["leaking_handlers"]


async def told_places(raw, text: str) -> set[str]:
    """The keys of the queue that hold the text, by the ends of their names."""
    _, keys = await raw("SCAN", "0", "MATCH", f"*{raw.keys.queue}*", "COUNT", 1_000_000)
    held = {key.decode(): await contents(raw, key) for key in keys}
    found = {key for key, value in held.items() if text.encode() in value}
    return {key.partition("}:")[2].partition(":")[0] for key in found}


async def contents(raw, key: bytes) -> bytes:
    reads = {
        b"stream": ("XRANGE", key, "-", "+"),
        b"zset": ("ZRANGE", key, 0, -1),
        b"hash": ("HGETALL", key),
        b"string": ("GET", key),
    }
    return repr(await raw(*reads[await raw("TYPE", key)])).encode()


async def fails_twice_and_dies(queue, running_worker, handler, **options):
    """Every place that can be told of an error is told of this one."""
    running = await running_worker(
        handler, retry=SOON, max_attempts=2, store_results=True, **options
    )
    # The payload is not the error's business, and the DLQ keeps it.
    job = await queue.add("login", SECRET)
    await eventually(lambda: running.worker.health().buried == 1)
    await running.stop()
    return job


def words_of(spans) -> str:
    return " ".join(span.to_json() for span in spans.get_finished_spans())


async def test_what_nobody_redacts_is_told_everywhere(
    queue, raw, running_worker, caplog, spans, tracing
):
    told = []
    await fails_twice_and_dies(
        queue, running_worker, leak, tracing=tracing, on_failed=lambda job: told.append(job.error)
    )

    places = await told_places(raw, f"password {SECRET}")
    assert places >= {"events", "history", "dlq", "outcome"}
    assert f"password {SECRET}" in caplog.text
    assert f"password {SECRET}" in words_of(spans)
    assert told == [f"ValueError: password {SECRET} refused"] * 2


async def test_what_is_redacted_is_told_nowhere(queue, raw, running_worker, caplog, spans, tracing):
    told = []
    await fails_twice_and_dies(
        queue, running_worker, leak, redact=hide, tracing=tracing,
        on_failed=lambda job: told.append(job.error),
    )  # fmt: skip

    assert await told_places(raw, f"password {SECRET}") == set()
    assert await told_places(raw, "password ***") >= {"events", "history", "dlq", "outcome"}
    assert SECRET not in caplog.text
    assert SECRET not in words_of(spans)
    assert told == ["ValueError: password *** refused"] * 2


async def test_the_log_still_shows_where_it_happened(queue, running_worker, caplog):
    await fails_twice_and_dies(queue, running_worker, leak, redact=hide)

    assert "failed, it runs again in 0.0 s: ValueError: password *** refused" in caplog.text
    assert "in leak" in caplog.text


async def test_the_log_shows_no_line_of_source_where_words_are_redacted(
    queue, running_worker, caplog
):
    async def literal(job):
        raise ValueError("password hunter2 refused")

    await fails_twice_and_dies(queue, running_worker, literal, redact=hide)

    assert "in literal" in caplog.text
    assert SECRET not in caplog.text


async def test_what_is_raised_in_a_child_process_is_redacted_too(
    queue, raw, running_worker, caplog, child_handlers
):
    await fails_twice_and_dies(
        queue, running_worker, child_handlers.leak, redact=hide, pool="process", pool_size=1
    )

    assert await told_places(raw, f"password {SECRET}") == set()
    assert SECRET not in caplog.text


async def test_the_reason_of_a_snooze_is_redacted_too(queue, raw, running_worker):
    seen = []

    async def snoozes_once(job):
        seen.append(job.id)
        if len(seen) == 1:
            raise RetryLater(1, f"password {SECRET} refused")

    running = await running_worker(snoozes_once, redact=hide)
    await queue.add("login", None)
    await eventually(lambda: running.worker.health().completed == 1)
    await running.stop()

    assert await told_places(raw, SECRET) == set()


async def test_the_hook_sees_the_type_and_the_whole_message(queue, raw, running_worker):
    seen = []

    async def long_words(job):
        raise ValueError("x" * 600 + SECRET)

    def note(error_type, message):
        seen.append((error_type, message))
        return message

    running = await running_worker(long_words, max_attempts=1, redact=note)
    await queue.add("login", None)
    await eventually(lambda: running.worker.health().buried == 1)

    assert seen == [("ValueError", "x" * 600 + SECRET)]
    (dead,) = await raw.dlq()
    assert dead[b"error"] == b"ValueError: " + b"x" * 512


async def test_the_fingerprint_is_that_of_the_redacted_text(queue, raw, running_worker):
    running = await running_worker(leak, max_attempts=1, redact=hide)
    await queue.add_bulk([{"name": "login", "data": word} for word in ("first", "second")])
    await eventually(lambda: running.worker.health().buried == 2)

    marks = {fields[b"fp"].decode() for fields in await raw.dlq()}
    assert marks == {fingerprint("ValueError", "password *** refused")}


def raises(error_type, message):
    raise LookupError(message)


def cancels(error_type, message):
    raise asyncio.CancelledError(message)


def forgets(error_type, message):
    return None


@pytest.mark.parametrize("bad", [raises, cancels, forgets])
async def test_a_hook_that_fails_withholds_the_text_and_is_told_once(
    queue, raw, running_worker, caplog, bad
):
    with caplog.at_level(logging.WARNING, "chasquimq"):
        await fails_twice_and_dies(queue, running_worker, leak, redact=bad)

    (dead,) = await raw.dlq()
    assert dead[b"error"].decode() == f"ValueError: {WITHHELD}"
    assert await told_places(raw, f"password {SECRET}") == set()
    warnings = [one for one in caplog.records if "the redact hook" in one.getMessage()]
    assert [one.name for one in warnings if "must return" in one.getMessage()] == [
        "chasquimq.engine.tracebacks"
    ]
    assert SECRET not in caplog.text


async def async_hook(error_type, message):
    return message


@pytest.mark.parametrize("hook", ["***", 7, async_hook])
def test_what_is_no_plain_function_is_refused(hook):
    with pytest.raises(SettingsError, match="redact"):
        Worker("q", leak, redact=hook)
