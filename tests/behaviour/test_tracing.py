"""Tracing: one trace shows an add and every run of its job, and nobody pays who did not ask."""

from __future__ import annotations

import asyncio
import re
import time

import pytest
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, get_current_span

from chasquimq import Queue, RetryLater, Tracing, UnrecoverableError, blocking
from chasquimq.settings import RetrySettings
from chasquimq.wire.envelope import encode_envelope, read_extras
from support.waiting import eventually

SOON = RetrySettings(initial_backoff_ms=1, max_backoff_ms=1, jitter_ms=0)
LATE_NS = 100_000_000


class Spans:
    """Everything that was recorded, by kind."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracing = Tracing(self.provider)

    @property
    def adds(self):
        return self._of(SpanKind.PRODUCER)

    @property
    def runs(self):
        return self._of(SpanKind.CONSUMER)

    async def some_runs(self, count):
        await eventually(lambda: len(self.runs) >= count, what=f"{count} runs with spans")
        return self.runs

    def _of(self, kind):
        return [span for span in self._exporter.get_finished_spans() if span.kind is kind]


def outcome(span):
    return span.attributes["chasquimq.job.outcome"]


def origin(span):
    return None if span.parent is None else span.parent.span_id


@pytest.fixture
def spans():
    return Spans()


@pytest.fixture
async def traced(url, queue_name, spans):
    async with Queue(queue_name, redis_url=url, tracing=spans.tracing) as queue:
        yield queue


async def noop(job):
    return


async def put(raw, body):
    await raw("XADD", raw.keys.stream, "*", "d", body, "n", "mail")


async def test_a_run_is_found_in_the_trace_of_its_add(traced, running_worker, spans):
    await running_worker(noop, tracing=spans.tracing, consumer_id="w-1")
    job = await traced.add("mail", 1)

    (run,) = await spans.some_runs(1)

    (add,) = spans.adds
    assert (add.name, run.name) == (f"add {traced.name}", f"execute {traced.name}")
    assert (origin(run), [one.context.span_id for one in run.links]) == (
        add.context.span_id,
        [add.context.span_id],
    )
    assert run.attributes["messaging.message.id"] == job.id
    assert run.attributes["messaging.client.id"] == "w-1"
    assert (run.attributes["chasquimq.job.run_number"], outcome(run)) == (1, "completed")


async def test_many_jobs_at_once_share_the_span_of_their_add(traced, running_worker, spans):
    await running_worker(noop, tracing=spans.tracing)
    await traced.add_bulk([{"name": "mail", "data": at} for at in range(3)])

    runs = await spans.some_runs(3)

    (add,) = spans.adds
    assert add.attributes["messaging.batch.message_count"] == 3
    assert {origin(run) for run in runs} == {add.context.span_id}


async def test_the_trace_survives_a_delay_and_every_retry(traced, running_worker, spans):
    async def fails_twice(job):
        if job.run_number < 3:
            raise ValueError(f"run {job.run_number}")

    await running_worker(fails_twice, retry=SOON, tracing=spans.tracing)
    await traced.add("mail", 1, delay_ms=1, timeout_ms=5_000)

    runs = await spans.some_runs(3)

    (add,) = spans.adds
    assert [origin(run) for run in runs] == [add.context.span_id] * 3
    assert [run.attributes["chasquimq.job.run_number"] for run in runs] == [1, 2, 3]
    assert [outcome(run) for run in runs] == ["retried", "retried", "completed"]
    assert runs[0].attributes["chasquimq.job.backoff_ms"] == 1
    assert [run.status.description for run in runs] == ["run 1", "run 2", None]
    assert runs[0].attributes["error.type"] == "ValueError"


async def test_other_extras_keep_their_place_beside_the_trace(traced, raw):
    await traced.add("mail", 1, timeout_ms=5_000, expires_ms=7_000)

    ((_, fields),) = await raw.entries(raw.keys.stream)
    extras = read_extras(fields[b"d"])
    assert extras.keys() == {"timeout_ms", "expires_ms", "traceparent"}
    assert (extras["timeout_ms"], extras["expires_ms"]) == (5_000, 7_000)


async def test_a_job_that_is_given_up_says_why(traced, running_worker, spans):
    async def gives_up(job):
        raise UnrecoverableError("no such card")

    await running_worker(gives_up, tracing=spans.tracing)
    await traced.add("charge", 1)

    (run,) = await spans.some_runs(1)

    assert (outcome(run), run.attributes["chasquimq.job.reason"]) == ("dead", "unrecoverable")
    assert (run.status.status_code, run.status.description) == (StatusCode.ERROR, "no such card")


async def test_a_run_that_takes_too_long_is_told_by_the_name_of_its_error(
    traced, running_worker, spans
):
    async def sleeps(job):
        await asyncio.Event().wait()

    await running_worker(sleeps, tracing=spans.tracing)
    await traced.add("slow", 1, timeout_ms=30, attempts=1)

    (run,) = await spans.some_runs(1)

    assert run.attributes["error.type"] == "JobTimeout"


async def test_a_run_that_asks_for_later_is_no_error(traced, running_worker, spans):
    async def snoozes_once(job):
        if not spans.runs:
            raise RetryLater(1)

    await running_worker(snoozes_once, tracing=spans.tracing)
    await traced.add("mail", 1)

    snoozed, completed = await spans.some_runs(2)

    assert (outcome(snoozed), outcome(completed)) == ("snoozed", "completed")
    assert snoozed.status.status_code is StatusCode.UNSET


async def test_a_run_lasts_as_long_as_its_handler(traced, running_worker, spans):
    took_ns = []

    async def sleeps(job):
        started_ns = time.monotonic_ns()
        await asyncio.sleep(0.02)
        took_ns.append(time.monotonic_ns() - started_ns)
        # The outcome is known later than this in any case.
        asyncio.get_running_loop().call_soon(time.sleep, LATE_NS / 1e9)

    await running_worker(sleeps, tracing=spans.tracing, concurrency=1)
    await traced.add_bulk([{"name": "mail", "data": at} for at in range(5)])

    runs = await spans.some_runs(5)

    longer_ns = [
        run.end_time - run.start_time - took for run, took in zip(runs, took_ns, strict=True)
    ]
    # On a busy machine some are held up, not all of them.
    assert 0 <= min(longer_ns) < LATE_NS


async def test_a_run_cut_short_by_the_deadline_is_told_when_the_worker_ends(
    traced, running_worker, spans
):
    began = asyncio.Event()

    async def never_ends(job):
        began.set()
        await asyncio.Event().wait()

    running = await running_worker(never_ends, tracing=spans.tracing, shutdown_deadline_ms=10)
    await traced.add("mail", 1)
    await began.wait()
    await running.stop()

    (run,) = spans.runs
    assert outcome(run) == "interrupted"


async def test_inside_a_handler_its_run_is_the_current_span(traced, running_worker, spans):
    seen = []

    def note():
        seen.append(get_current_span().get_span_context().span_id)

    async def waits(job):
        await asyncio.sleep(0)
        note()

    def in_thread(job):
        note()

    handlers = {"async": waits, "thread": in_thread}
    with spans.provider.get_tracer("test").start_as_current_span("the worker's own"):
        await running_worker(handlers, tracing=spans.tracing)
    await traced.add_bulk([{"name": name, "data": 1} for name in handlers])

    runs = await spans.some_runs(2)
    assert set(seen) == {run.context.span_id for run in runs}


async def test_a_job_added_by_a_handler_goes_on_with_its_trace(traced, running_worker, spans):
    async def adds_another(job):
        if job.name == "first":
            await traced.add("second", 1)

    await running_worker(adds_another, tracing=spans.tracing)
    await traced.add("first", 1)

    runs = {run.attributes["chasquimq.job.name"]: run for run in await spans.some_runs(2)}
    adds = {add.attributes["chasquimq.job.name"]: add for add in spans.adds}
    assert origin(adds["second"]) == runs["first"].context.span_id
    assert runs["second"].context.trace_id == adds["first"].context.trace_id


async def test_adds_of_the_blocking_queue_belong_to_its_caller(url, queue_name, spans):
    def request():
        with (
            spans.provider.get_tracer("web").start_as_current_span("request") as request,
            blocking.Queue(queue_name, redis_url=url, tracing=spans.tracing) as queue,
        ):
            queue.add("mail", 1)
        return request.get_span_context().span_id

    request_id = await asyncio.to_thread(request)

    (add,) = spans.adds
    assert origin(add) == request_id


@pytest.mark.parametrize(
    "extras",
    [
        pytest.param(None, id="none, as the original adds"),
        pytest.param({"traceparent": "no trace"}, id="broken"),
        pytest.param({"traceparent": 7}, id="a number"),
        pytest.param({"traceparent": "00-" + "f" * 32 + "-" + "0" * 16 + "-01"}, id="no span"),
    ],
)
async def test_a_job_without_a_readable_trace_runs_and_starts_one(
    raw, running_worker, spans, extras
):
    await running_worker(noop, tracing=spans.tracing)
    await put(raw, encode_envelope("job-1", b"\x01", 1_700_000_000_000, extras=extras))

    (run,) = await spans.some_runs(1)

    assert (run.parent, run.links, outcome(run)) == (None, (), "completed")


async def test_without_tracing_a_job_travels_as_the_original_sends_it(queue, raw):
    job = await queue.add("mail", 1)

    ((_, fields),) = await raw.entries(raw.keys.stream)
    assert fields[b"d"] == encode_envelope(job.id, b"\x01", job.created_at_ms)


async def test_a_worker_without_tracing_carries_the_trace_on_and_opens_no_span(
    traced, running_worker, spans
):
    seen = []

    async def fails_once(job):
        seen.append(job.delivery.extras["traceparent"])
        if job.run_number == 1:
            raise ValueError("once")

    await running_worker(fails_once, retry=SOON)
    await traced.add("mail", 1)

    await eventually(lambda: len(seen) == 2)
    assert seen[0] == seen[1]
    assert spans.runs == []


async def test_a_name_that_nobody_handles_is_no_run(traced, raw, running_worker, spans):
    await running_worker({"known": noop}, tracing=spans.tracing)
    await traced.add("unknown", 1)
    await eventually(lambda: raw("ZCARD", raw.keys.delayed))
    await traced.add("known", 1)

    (run,) = await spans.some_runs(1)
    assert run.attributes["chasquimq.job.name"] == "known"


class GivesUp(BaseException):
    """What no `except Exception` stops."""


@pytest.mark.parametrize("moment", ["on_start", "on_end"])
@pytest.mark.parametrize("error", [OSError, asyncio.CancelledError, GivesUp])
async def test_a_tracer_that_raises_harms_no_job(
    url, queue_name, running_worker, spans, error, moment
):
    def breaks(*_, **__):
        raise error("no collector")

    broken = SpanProcessor()
    setattr(broken, moment, breaks)
    spans.provider.add_span_processor(broken)
    running = await running_worker(noop, tracing=spans.tracing)
    async with Queue(queue_name, redis_url=url, tracing=spans.tracing) as queue:
        await queue.add("mail", 1)
        await eventually(lambda: running.worker.health().completed == 1)
        await queue.add_bulk([{"name": "mail", "data": 1}])

    await eventually(lambda: running.worker.health().completed == 2)


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError])
async def test_a_listener_that_raises_costs_no_other_its_outcomes(
    queue, running_worker, spans, caplog, error
):
    class BrokenSpan:
        def end(self, outcome, **_):
            raise error(outcome)

    class BrokenTracing(Tracing):
        def start_run(self, *_):
            return BrokenSpan()

    told = []
    running = await running_worker(
        noop, tracing=BrokenTracing(spans.provider), on_completed=lambda job: told.append(job.data)
    )
    for at in range(3):
        await queue.add("mail", at)
        await eventually(lambda at=at: len(told) == at + 1)

    assert told == [0, 1, 2]
    assert running.worker.health().completed == 3
    assert len(re.findall(r"the listener \S+ of worker \S+ of queue \S+ raised", caplog.text)) == 1
