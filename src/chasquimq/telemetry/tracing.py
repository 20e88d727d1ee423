"""Traces adds and runs with OpenTelemetry; the span of an add travels with its job."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from chasquimq.errors import SettingsError
from chasquimq.model.log import LogThrottle, get_logger

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanContext, TracerProvider

# ── how a span travels with a job ─────────────────────────────────────────────────────────────────

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
        # Other programs write extras, too.
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


# ── spans of adds and runs ────────────────────────────────────────────────────────────────────────

TRACER_NAME = "chasquimq"
_SYSTEM = "chasquimq"

logger = get_logger(__name__)
Attributes = dict[str, str | int]
Answer = TypeVar("Answer")
_NOTHING: Mapping[str, str | int] = {}


class RunningJob(Protocol):
    """The attributes of a run that a span records."""

    @property
    def job_id(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def run_number(self) -> int: ...


class Tracing:
    """Spans by the conventions for messages, from a tracer provider or the process's own.

    What a tracer raises is logged, and harms no job.

    Raises:
        SettingsError: OpenTelemetry is not installed.
    """

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        try:
            from opentelemetry.trace import INVALID_SPAN, get_tracer
        except ModuleNotFoundError as missing:
            hint = "pip install 'chasquimq-py[otel]'"
            rule = "left out where OpenTelemetry is not installed"
            raise SettingsError("tracing", True, rule, hint=hint) from missing
        self._tracer = get_tracer(TRACER_NAME, tracer_provider=tracer_provider)
        self._none = INVALID_SPAN
        self._throttle = LogThrottle()

    @contextmanager
    def adding(
        self,
        queue: str,
        *,
        job_id: str | None = None,
        name: str = "",
        batch_count: int | None = None,
    ) -> Generator[dict[str, str]]:
        """A span around an add; yields the extras that link the run of the job to it."""
        attributes = _attributes(queue, "add", "send", job_id=job_id, name=name)
        if batch_count is not None:
            attributes["messaging.batch.message_count"] = batch_count
        span = self._safely(lambda: self._start_add(queue, attributes), self._none)
        try:
            yield self._safely(lambda: extras_of(span), {})
        except BaseException as error:
            words = type(error).__name__, str(error)
            self._safely(lambda: _note_error(span, *words), None)
            raise
        finally:
            self._safely(span.end, None)

    def start_run(
        self, queue: str, job: RunningJob, extras: Mapping[str, Any], attributes: Attributes
    ) -> RunSpan:
        """A span for one run, current from here on in this context.

        The span that added the job is its parent, so that one trace shows the whole way, and its
        link, which is what the conventions ask for. Extras that name none leave it alone.
        """
        about = _attributes(queue, "execute", "process", job_id=job.job_id, name=job.name)
        about |= {"chasquimq.job.run_number": job.run_number, **attributes}
        started_ns = time.time_ns()
        span = self._safely(lambda: self._start_run(queue, about, extras, started_ns), self._none)
        return RunSpan(span, started_ns, lambda act: self._safely(act, None))

    def _start_add(self, queue: str, attributes: Attributes) -> Span:
        from opentelemetry.trace import SpanKind

        return self._tracer.start_span(
            f"add {queue}", kind=SpanKind.PRODUCER, attributes=attributes
        )

    def _start_run(
        self, queue: str, attributes: Attributes, extras: Mapping[str, Any], started_ns: int
    ) -> Span:
        from opentelemetry.context import Context, attach
        from opentelemetry.trace import Link, SpanKind, set_span_in_context

        origin = origin_of(extras)
        span = self._tracer.start_span(
            f"execute {queue}",
            context=context_of(origin),
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=[Link(origin)] if origin else None,
            start_time=started_ns,
        )
        # Never detached: the context is the job's own and ends with it.
        attach(set_span_in_context(span, Context()))
        return span

    def _safely(self, act: Callable[[], Answer], otherwise: Answer) -> Answer:
        try:
            return act()
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # a tracer's error, even a cancel, is never the job's
            if self._throttle.allows():
                logger.warning(
                    "the tracer raised%s", self._throttle.held_back_text(), exc_info=True
                )
            return otherwise


class RunSpan:
    """The span of one run; it is open until its outcome is known."""

    def __init__(
        self, span: Span, started_ns: int, safely: Callable[[Callable[[], None]], None]
    ) -> None:
        self._span = span
        self._started_ns = started_ns
        self._safely = safely

    def end(
        self,
        outcome: str,
        *,
        duration_us: int | None = None,
        error: tuple[str, str] | None = None,
        attributes: Mapping[str, str | int] = _NOTHING,
    ) -> None:
        """The run ended when its handler did, however long its outcome took to be known."""
        about = {"chasquimq.job.outcome": outcome, **attributes}
        self._safely(lambda: self._note(about, error))
        ended_ns = None if duration_us is None else self._started_ns + duration_us * 1_000
        self._safely(lambda: self._span.end(ended_ns))

    def _note(self, attributes: Attributes, error: tuple[str, str] | None) -> None:
        self._span.set_attributes(attributes)
        if error is not None:
            _note_error(self._span, *error)


def tracing_of(asked: bool | Tracing) -> Tracing | None:
    """What the argument `tracing` of queues and workers asks for; None: no spans."""
    if isinstance(asked, Tracing):
        return asked
    if not isinstance(asked, bool):  # pyright: ignore[reportUnnecessaryIsInstance]  user input
        hint = "a tracer provider goes into a Tracing"
        raise SettingsError("tracing", asked, "True, False or a Tracing", hint=hint)
    return Tracing() if asked else None


def flush_spans(within_s: float) -> None:
    """Export the spans that the tracer provider still keeps, in processes that skip `atexit`."""
    trace = sys.modules.get("opentelemetry.trace")
    flush = getattr(trace and trace.get_tracer_provider(), "force_flush", None)
    if flush is None:
        return
    # In a thread: an exporter may take longer than it was given.
    thread = threading.Thread(target=flush, name="chasqui-flush-spans", daemon=True)
    thread.start()
    thread.join(within_s)


def _note_error(span: Span, error_type: str, message: str) -> None:
    from opentelemetry.trace import Status, StatusCode

    span.set_attribute("error.type", error_type)
    # Not the exception itself: its text may have been redacted, and its traceback was not.
    words = {"exception.type": error_type, "exception.message": message}
    span.add_event("exception", words)
    span.set_status(Status(StatusCode.ERROR, message or error_type))


def _attributes(
    queue: str, operation: str, operation_type: str, *, job_id: str | None, name: str
) -> Attributes:
    attributes: Attributes = {
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
