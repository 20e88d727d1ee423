"""Tells the log why handlers fail: each kind of failure with its traceback, then once a minute."""

from __future__ import annotations

import logging
import time
import traceback
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chasquimq.model.delivery import Delivery
    from chasquimq.model.verdict import Failure

logger = logging.getLogger(__name__)
_AGAIN_S = 60.0
_KINDS_MAX = 1_000


class FailureLog:
    """A kind of failure is a job name and an error type.

    Without messages a traceback shows where it happened, and none of the words of the error.
    """

    def __init__(self, *, tells_messages: bool = True) -> None:
        self._format = traceback.format_exception if tells_messages else _frames
        self._told_s: dict[tuple[str, str], float] = {}
        self._untold: dict[tuple[str, str], int] = {}

    def note(self, delivery: Delivery, error: BaseException, failure: Failure, fate: str) -> None:
        """Log a failure, unless one of its kind was logged a moment ago."""
        kind = (delivery.name, failure.error_type)
        now_s = time.monotonic()
        if now_s - self._told_s.get(kind, -_AGAIN_S) < _AGAIN_S:
            self._untold[kind] = self._untold.get(kind, 0) + 1
            return
        if len(self._told_s) >= _KINDS_MAX:
            self._told_s.clear()
        self._told_s[kind] = now_s
        logger.warning(
            "a handler failed: %s\n%s", failure.text, self._trace(error),
            extra={
                "job_name": delivery.name, "job_id": delivery.job_id, "fate": fate,
                "run_number": delivery.run_number, "untold": self._untold.pop(kind, 0),
            },
        )  # fmt: skip

    def _trace(self, error: BaseException) -> str:
        """The traceback in characters that any log can carry, whatever the error is made of."""
        try:
            text = "".join(self._format(error))
        except Exception:  # noqa: BLE001 - a user's exception may resist being looked at
            return "<no traceback: the exception cannot be formatted>"
        return text.encode(errors="backslashreplace").decode()


def _frames(error: BaseException) -> list[str]:
    return traceback.format_tb(error.__traceback__)
