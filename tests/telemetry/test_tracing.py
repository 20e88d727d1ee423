"""Spans of adds and runs, joined by the text that travels with a job."""

import contextvars
import logging
import subprocess
import sys
from typing import NamedTuple

import pytest
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import (
    NonRecordingSpan,
    NoOpTracerProvider,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    TraceState,
    use_span,
)

from chasquimq.errors import SettingsError
from chasquimq.telemetry.tracing import Tracing, tracing_of

ORIGIN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
WORKER = {"messaging.consumer.group.name": "default", "messaging.client.id": "w-1"}

WITHOUT_OPENTELEMETRY = """
import sys
sys.modules["opentelemetry"] = None
from chasquimq import Queue, Worker
from chasquimq.errors import SettingsError
try:
    Queue("q", tracing=True)
except SettingsError as refused:
    print(refused)
"""
UNASKED = """
import sys
from chasquimq import Queue, Worker
Queue("q"), Worker("q", print)
print(any(name.startswith("opentelemetry") for name in sys.modules))
"""


class RunningJob(NamedTuple):
    job_id: str = "job-1"
    name: str = "mail"
    run_number: int = 2


class Broken(SpanProcessor):
    """Raises at every turn."""

    def on_start(self, span, parent_context=None):
        raise OSError("no collector")

    def on_end(self, span):
        raise OSError("no collector")


@pytest.fixture
def exporter():
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter):
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider


@pytest.fixture
def tracing(provider):
    return Tracing(provider)


def run(tracing, extras, inside=lambda: None, **end):
    """A run in a context of its own, as a worker has it."""

    def steps():
        span = tracing.start_run("emails", RunningJob(), extras, WORKER)
        inside()
        span.end("completed", **end)

    contextvars.copy_context().run(steps)


def test_a_run_belongs_to_the_trace_of_its_add(tracing, exporter):
    with tracing.adding("emails", job_id="job-1", name="mail") as extras:
        pass
    run(tracing, extras)

    add, ran = exporter.get_finished_spans()
    assert ran.context.trace_id == add.context.trace_id
    assert ran.parent.span_id == add.context.span_id
    assert [link.context.span_id for link in ran.links] == [add.context.span_id]


def test_an_add_belongs_to_the_trace_of_its_caller(provider, tracing, exporter):
    with (
        provider.get_tracer("web").start_as_current_span("request") as request,
        tracing.adding("emails"),
    ):
        pass

    add, _ = exporter.get_finished_spans()
    assert add.parent.span_id == request.get_span_context().span_id


def test_an_add_is_a_producer_span_with_the_names_of_the_conventions(tracing, exporter):
    with tracing.adding("emails", job_id="job-1", name="mail", batch_count=3):
        pass

    (add,) = exporter.get_finished_spans()
    assert (add.name, add.kind) == ("add emails", SpanKind.PRODUCER)
    assert dict(add.attributes) == {
        "messaging.system": "chasquimq",
        "messaging.destination.name": "emails",
        "messaging.operation.name": "add",
        "messaging.operation.type": "send",
        "messaging.message.id": "job-1",
        "messaging.batch.message_count": 3,
        "chasquimq.job.name": "mail",
    }


def test_a_run_is_a_consumer_span_with_the_names_of_the_conventions(tracing, exporter):
    run(tracing, {"traceparent": ORIGIN})

    (ran,) = exporter.get_finished_spans()
    assert (ran.name, ran.kind) == ("execute emails", SpanKind.CONSUMER)
    assert dict(ran.attributes) == {
        "messaging.system": "chasquimq",
        "messaging.destination.name": "emails",
        "messaging.operation.name": "execute",
        "messaging.operation.type": "process",
        "messaging.message.id": "job-1",
        "messaging.consumer.group.name": "default",
        "messaging.client.id": "w-1",
        "chasquimq.job.name": "mail",
        "chasquimq.job.run_number": 2,
        "chasquimq.job.outcome": "completed",
    }
    assert ran.parent.trace_id == 0x0AF7651916CD43DD8448EB211C80319C


@pytest.mark.parametrize(
    "traceparent",
    [
        None, "", "nonsense", ORIGIN[:-3], "00-" + "0" * 32 + "-" + "0" * 16 + "-01", 7, b"00",
        "0" * 10_000,
    ],
    ids=lambda text: str(text)[:60],
)  # fmt: skip
def test_a_run_without_a_readable_origin_starts_a_trace(tracing, exporter, traceparent, caplog):
    run(tracing, {"traceparent": traceparent, "tracestate": 7})

    (ran,) = exporter.get_finished_spans()
    assert (ran.parent, ran.links) == (None, ())
    assert caplog.records == []


def test_what_is_current_in_the_worker_is_no_parent_of_a_run(provider, tracing, exporter):
    with provider.get_tracer("worker").start_as_current_span("outside"):
        run(tracing, {})

    ran, _ = exporter.get_finished_spans()
    assert ran.parent is None


def test_spans_inside_a_handler_belong_to_its_run(provider, tracing, exporter):
    def inside():
        provider.get_tracer("handler").start_span("inside").end()

    run(tracing, {"traceparent": ORIGIN}, inside)

    inner, ran = exporter.get_finished_spans()
    assert inner.parent.span_id == ran.context.span_id


def test_the_state_of_a_trace_travels_along(tracing, exporter):
    state = TraceState([("vendor", "value")])
    origin = SpanContext(0xA, 0xB, is_remote=True, trace_flags=TraceFlags(1), trace_state=state)
    with use_span(NonRecordingSpan(origin)), tracing.adding("emails") as extras:
        pass
    run(tracing, extras)

    assert extras["tracestate"] == "vendor=value"
    _, ran = exporter.get_finished_spans()
    assert ran.context.trace_state == state


def test_a_state_that_would_crowd_the_envelope_stays_behind(tracing):
    state = TraceState([(f"vendor{at}", "v" * 200) for at in range(3)])
    origin = SpanContext(0xA, 0xB, is_remote=True, trace_flags=TraceFlags(1), trace_state=state)
    with use_span(NonRecordingSpan(origin)), tracing.adding("emails") as extras:
        pass

    assert extras.keys() == {"traceparent"}


def test_an_error_is_noted_by_type_and_text_alone(tracing, exporter):
    run(tracing, {}, error=("ValueError", "boom"))

    (ran,) = exporter.get_finished_spans()
    assert (ran.status.status_code, ran.status.description) == (StatusCode.ERROR, "boom")
    assert ran.attributes["error.type"] == "ValueError"
    assert dict(ran.events[0].attributes) == {
        "exception.type": "ValueError",
        "exception.message": "boom",
    }


def test_an_add_that_fails_says_so_and_goes_on_failing(tracing, exporter):
    with pytest.raises(ConnectionError, match="gone"), tracing.adding("emails"):
        raise ConnectionError("gone")

    (add,) = exporter.get_finished_spans()
    assert add.status.status_code is StatusCode.ERROR
    assert add.attributes["error.type"] == "ConnectionError"


def test_a_run_ends_when_its_handler_did(tracing, exporter):
    run(tracing, {}, duration_us=1_500)

    (ran,) = exporter.get_finished_spans()
    assert ran.end_time - ran.start_time == 1_500_000


def test_a_tracer_that_raises_is_told_once_and_harms_nothing(provider, caplog):
    provider.add_span_processor(Broken())
    tracing = Tracing(provider)

    with caplog.at_level(logging.WARNING, "chasquimq"):
        for _ in range(3):
            with tracing.adding("emails") as extras:
                assert extras == {}
            run(tracing, extras)

    assert [record.getMessage() for record in caplog.records] == ["the tracer raised"]


def test_where_nobody_records_nothing_travels():
    with Tracing(NoOpTracerProvider()).adding("emails") as extras:
        pass

    assert extras == {}


def test_what_is_no_answer_to_tracing_is_refused(provider):
    with pytest.raises(SettingsError, match="a Tracing"):
        tracing_of(provider)


def test_who_asks_for_spans_without_opentelemetry_is_told_what_to_install():
    said = output_of(WITHOUT_OPENTELEMETRY)

    assert said.startswith("tracing must be left out")
    assert "chasquimq-py[otel]" in said


def test_who_asks_for_none_does_not_load_opentelemetry():
    assert output_of(UNASKED) == "False\n"


def output_of(program: str) -> str:
    path = {"PYTHONPATH": ":".join(part for part in sys.path if part)}
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=path
    ).stdout
