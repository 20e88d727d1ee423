"""Finds our own sentence in what Spark says about a query that failed."""

from __future__ import annotations

import re

_LINE_CHARS_MAX = 300
# A stream starts its Python process anew, and Spark gives it ten seconds, which no setting changes.
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
    told = [line for line in lines if not line.startswith("An error occurred")]
    return (told or ["no reason was given"])[0][:_LINE_CHARS_MAX]


def is_late_process(error: BaseException) -> bool:
    """Whether a Python process did not start in Spark's time: on a busy machine it may next time."""
    return _LATE in str(error)
