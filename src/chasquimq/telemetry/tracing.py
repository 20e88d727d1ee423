"""Spans around adds and runs, joined by the `traceparent` text that travels with a job.

OpenTelemetry is imported when a span is asked for, and never for asking whether there is one.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanContext, Tracer, TracerProvider

TRACER_NAME = "chasquimq"
TRACEPARENT = "traceparent"
_SYSTEM = "chasquimq"
# A process has one, as a rule; a new tracer for each span would make it a third dearer.
_PROVIDERS_MAX = 8


class RunningJob(Protocol):
    """What a consumer span says about a job."""

    id: str
    name: str

    @property
    def run_number(self) -> int: ...


def inject_traceparent() -> str | None:
    """The text that names the current span, for the job's extras; None where there is no span."""
    # Who never imported OpenTelemetry has no span, and should not pay for finding that out.
    if "opentelemetry.trace" not in sys.modules:
        return None
    from opentelemetry.trace import get_current_span

    current = get_current_span().get_span_context()
    if not current.is_valid:
        return None
    return f"00-{current.trace_id:032x}-{current.span_id:016x}-{current.trace_flags:02x}"


@contextmanager
def producer_span(
    queue: str,
    *,
    job_id: str | None = None,
    name: str = "",
    batch_count: int | None = None,
    tracer_provider: TracerProvider | None = None,
) -> Generator[Span, None, None]:
    """A span around an add; `inject_traceparent` inside it names it."""
    from opentelemetry.trace import SpanKind

    attributes = _attributes(queue, "add", "send", job_id=job_id, name=name)
    if batch_count is not None:
        attributes["messaging.batch.message_count"] = batch_count
    with _tracer(tracer_provider).start_as_current_span(
        f"add {queue}", kind=SpanKind.PRODUCER, attributes=attributes
    ) as span:
        yield span


@contextmanager
def consumer_span(
    job: RunningJob,
    traceparent: str | None,
    *,
    queue: str,
    tracer_provider: TracerProvider | None = None,
) -> Generator[Span, None, None]:
    """A span around one run; what the handler raises is noted on it and goes on.

    The span that added the job is its parent, so that one trace shows the whole way, and its link,
    which is what the conventions for messages ask for. A text that is none leaves it alone.
    """
    from opentelemetry.trace import Link, SpanKind

    attributes = _attributes(queue, "execute", "process", job_id=job.id, name=job.name)
    attributes["chasquimq.job.run_number"] = job.run_number
    origin = _origin(traceparent)
    with _tracer(tracer_provider).start_as_current_span(
        f"execute {queue}",
        context=_context_of(origin),
        kind=SpanKind.CONSUMER,
        attributes=attributes,
        links=[Link(origin)] if origin else None,
    ) as span:
        yield span


@lru_cache(maxsize=_PROVIDERS_MAX)
def _tracer(provider: TracerProvider | None) -> Tracer:
    from opentelemetry.trace import get_tracer

    return get_tracer(TRACER_NAME, tracer_provider=provider)


def _origin(traceparent: str | None) -> SpanContext | None:
    """The span that the text names, if it names one."""
    from opentelemetry.context import Context
    from opentelemetry.trace import get_current_span
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    # Extras are written by strangers too.
    if not isinstance(traceparent, str):
        return None
    context = TraceContextTextMapPropagator().extract({TRACEPARENT: traceparent}, Context())
    found = get_current_span(context).get_span_context()
    return found if found.is_valid else None


def _context_of(origin: SpanContext | None) -> Context:
    """An empty context, or one whose only span is the origin.

    What happens to be current in the worker is no part of the job's trace.
    """
    from opentelemetry.context import Context
    from opentelemetry.trace import NonRecordingSpan, set_span_in_context

    if origin is None:
        return Context()
    return set_span_in_context(NonRecordingSpan(origin), Context())


def _attributes(
    queue: str, operation: str, operation_type: str, *, job_id: str | None, name: str
) -> dict[str, str | int]:
    attributes: dict[str, str | int] = {
        "messaging.system": _SYSTEM,
        "messaging.destination.name": queue,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation_type,
    }
    if job_id is not None:
        attributes["messaging.message.id"] = job_id
    if name:
        attributes["chasquimq.job.name"] = name
    return attributes
