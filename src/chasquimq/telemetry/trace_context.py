"""A span as the text that travels with a job, and that text as a span again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanContext

_TRACEPARENT = "traceparent"
_TRACESTATE = "tracestate"
# What every system must pass on; more would crowd the envelope.
_EXTRA_CHARS_MAX = 512


def extras_of(span: Span) -> dict[str, str]:
    """The span as text that travels with a job."""
    from opentelemetry.context import Context
    from opentelemetry.trace import set_span_in_context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    extras: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(extras, set_span_in_context(span, Context()))
    return {key: text for key, text in extras.items() if len(text) <= _EXTRA_CHARS_MAX}


def origin_of(extras: Mapping[str, Any]) -> SpanContext | None:
    """The span that the extras name, if they name one."""
    from opentelemetry.context import Context
    from opentelemetry.trace import get_current_span
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    for key in (_TRACEPARENT, _TRACESTATE):
        text = extras.get(key)
        # Extras are written by strangers too.
        if isinstance(text, str) and len(text) <= _EXTRA_CHARS_MAX:
            carrier[key] = text
    context = TraceContextTextMapPropagator().extract(carrier, Context())
    found = get_current_span(context).get_span_context()
    return found if found.is_valid else None


def context_of(origin: SpanContext | None) -> Context:
    """An empty context, or one whose only span is the origin.

    What happens to be current in the worker is no part of the job's trace.
    """
    from opentelemetry.context import Context
    from opentelemetry.trace import NonRecordingSpan, set_span_in_context

    if origin is None:
        return Context()
    return set_span_in_context(NonRecordingSpan(origin), Context())
