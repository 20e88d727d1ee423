"""Finds our own sentence in what Spark says about a query that failed."""

from __future__ import annotations

import logging
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from chasquimq.errors import ProcessLate

_LINE_CHARS_MAX = 300
# A stream starts its Python process again, and Spark gives it ten seconds, which no setting changes.
_LATE = "Python worker failed to connect back"
# Spark hands on the traceback of its Python process; the last line of it is the error itself.
_OURS = re.compile(r"^chasquimq\.errors\.(?P<kind>\w+): (?P<sentence>.+)$", re.MULTILINE)


def complaint_kind(error: BaseException) -> str:
    """The name of our error; empty where the failure is not one of ours."""
    found = _OURS.findall(str(error))
    return found[-1][0] if found else ""


def complaint(error: BaseException) -> str | None:
    """What must hold, what was found, what to try; None: the failure is not one of ours."""
    found = _OURS.findall(str(error))
    return found[-1][1].strip() if found else None


def first_line(error: BaseException) -> str:
    """What Spark says of a failure, without its stack."""
    lines = [line.strip(": ") for line in str(error).strip().splitlines() if line.strip()]
    reasons = [line for line in lines if not line.startswith("An error occurred")]
    return (reasons or ["no reason was given"])[0][:_LINE_CHARS_MAX]


def is_late_process(error: BaseException) -> bool:
    """Whether a Python process did not start in Spark's time: on a busy machine it may next time."""
    return _LATE in str(error)


# What a caller of it gets then: an answer cut off, or no connection.
JVM_GONE: Final = (Py4JError, OSError, EOFError)


def hush_its_end(session: SparkSession) -> None:
    """Let no library print that the JVM hung up; a caller that needs it notices."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_is_no_hang_up)
    context: Any = getattr(session, "_sc", None)
    server = getattr(context, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = _ignore


def stop_session(session: SparkSession) -> None:
    """Stop a session, be its JVM there or not.

    Queries that it cuts off print their Java traces past every log level.
    """
    context: Any = getattr(session, "_sc", None)
    with suppress(*JVM_GONE):
        if context is not None:
            java = context._jvm.java  # noqa: SLF001  the one way to the JVM
            java.lang.System.setErr(java.io.PrintStream(java.io.OutputStream.nullOutputStream()))
        session.stop()


def _is_no_hang_up(record: logging.LogRecord) -> bool:
    return record.msg != "Exception while sending command."


def _ignore(_request: object, _client: object) -> None:
    pass


# Each costs Spark's ten seconds: a minute of them is no busy moment, but a broken Python.
LATE_MAX: Final = 6


class Lateness:
    """Counts late processes in a row; one that came in time begins a new row."""

    def __init__(self) -> None:
        self.count = 0

    def bear(self, late: ProcessLate) -> None:
        """Count one more.

        Raises:
            ProcessLate: it was the last that is borne.
        """
        self.count += 1
        if self.count >= LATE_MAX:
            raise late

    def forget(self) -> None:
        """Begin again: all queries go on."""
        self.count = 0
