"""Traces that a test can look at."""

from __future__ import annotations

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter

from chasquimq import Tracing


def traced_to(spans: SpanExporter) -> Tracing:
    """Tracing whose spans are there as soon as they end."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    return Tracing(provider)
