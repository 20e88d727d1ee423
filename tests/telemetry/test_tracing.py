"""Spans of adds and runs, joined by the text that travels with a job."""

import subprocess
import sys

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from chasquimq.job import Job
from chasquimq.telemetry.tracing import consumer_span, inject_traceparent, producer_span

JOB = Job(id="job-1", name="mail", data=None, attempt=1)
ORIGIN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

ASK_WITHOUT_OPENTELEMETRY = """
import sys
from chasquimq.telemetry.tracing import inject_traceparent
print(inject_traceparent(), any(name.startswith("opentelemetry") for name in sys.modules))
"""


@pytest.fixture
def exporter():
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter):
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider


def test_a_run_belongs_to_the_trace_of_its_add(provider, exporter):
    with producer_span("emails", job_id="job-1", name="mail", tracer_provider=provider):
        traceparent = inject_traceparent()
    with consumer_span(JOB, traceparent, queue="emails", tracer_provider=provider):
        pass

    add, run = exporter.get_finished_spans()
    assert run.context.trace_id == add.context.trace_id
    assert run.parent.span_id == add.context.span_id
    assert [link.context.span_id for link in run.links] == [add.context.span_id]


def test_an_add_is_a_producer_span_with_the_names_of_the_conventions(provider, exporter):
    with producer_span(
        "emails", job_id="job-1", name="mail", batch_count=3, tracer_provider=provider
    ):
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


def test_a_run_is_a_consumer_span_with_the_names_of_the_conventions(provider, exporter):
    with consumer_span(JOB, ORIGIN, queue="emails", tracer_provider=provider):
        pass

    (run,) = exporter.get_finished_spans()
    assert (run.name, run.kind) == ("execute emails", SpanKind.CONSUMER)
    assert dict(run.attributes) == {
        "messaging.system": "chasquimq",
        "messaging.destination.name": "emails",
        "messaging.operation.name": "execute",
        "messaging.operation.type": "process",
        "messaging.message.id": "job-1",
        "chasquimq.job.name": "mail",
        "chasquimq.job.run_number": 2,
    }
    assert run.parent.trace_id == 0x0AF7651916CD43DD8448EB211C80319C


@pytest.mark.parametrize(
    "traceparent",
    [None, "", "nonsense", ORIGIN[:-3], "00-" + "0" * 32 + "-" + "0" * 16 + "-01", 7, b"00"],
    ids=str,
)
def test_a_run_without_a_readable_origin_starts_a_trace(provider, exporter, traceparent):
    with consumer_span(JOB, traceparent, queue="emails", tracer_provider=provider):
        pass

    (run,) = exporter.get_finished_spans()
    assert (run.parent, run.links) == (None, ())


def test_what_is_current_in_the_worker_is_no_parent_of_a_run(provider, exporter):
    with (
        provider.get_tracer("worker").start_as_current_span("outside"),
        consumer_span(JOB, None, queue="emails", tracer_provider=provider),
    ):
        pass

    run, _ = exporter.get_finished_spans()
    assert run.parent is None


def test_spans_inside_a_handler_belong_to_its_run(provider, exporter):
    with (
        consumer_span(JOB, ORIGIN, queue="emails", tracer_provider=provider) as run,
        provider.get_tracer("handler").start_as_current_span("inside"),
    ):
        pass

    inside, _ = exporter.get_finished_spans()
    assert inside.parent.span_id == run.get_span_context().span_id


def test_what_a_handler_raises_is_noted_and_goes_on(provider, exporter):
    with (
        pytest.raises(ValueError, match="boom"),
        consumer_span(JOB, ORIGIN, queue="emails", tracer_provider=provider),
    ):
        raise ValueError("boom")

    (run,) = exporter.get_finished_spans()
    assert run.status.status_code is StatusCode.ERROR
    assert run.events[0].name == "exception"


def test_without_a_span_there_is_no_text():
    assert inject_traceparent() is None


def test_asking_for_the_text_does_not_import_opentelemetry():
    answer = subprocess.run(
        [sys.executable, "-c", ASK_WITHOUT_OPENTELEMETRY],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(path for path in sys.path if path)},
    )

    assert answer.stdout == "None False\n"
