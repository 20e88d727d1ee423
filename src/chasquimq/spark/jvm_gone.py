"""A JVM that dies before its session ends, as by a signal to all processes of a group."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What whoever talks to it hears then: an answer cut off, or nobody who takes the call.
JVM_GONE: Final = (Py4JError, OSError, EOFError)


def hush_its_end(session: SparkSession) -> None:
    """Let nobody print that the JVM hung up; whoever needs it notices by himself."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_is_no_hang_up)
    context: Any = getattr(session, "_sc", None)
    server = getattr(context, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = _ignore


def stop_session(session: SparkSession) -> None:
    """Stop a session, be its JVM there or not."""
    with suppress(*JVM_GONE):
        session.stop()


def _is_no_hang_up(record: logging.LogRecord) -> bool:
    return record.msg != "Exception while sending command."


def _ignore(_request: object, _client: object) -> None:
    pass
