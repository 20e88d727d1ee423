"""Tells the log why handlers fail: each kind of failure with its traceback, then once a minute."""

from __future__ import annotations

import time
import traceback
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from chasquimq.model.log import get_logger
from chasquimq.model.pace import Pace
from chasquimq.model.reason import DlqReason
from chasquimq.model.verdict import unknown_since_ms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chasquimq.model.delivery import Delivery
    from chasquimq.model.verdict import Failure, RetryPolicy

logger = get_logger(__name__)
_AGAIN_S = 60.0
_KINDS_MAX = 1_000
# Names may be made up by whoever adds jobs: neither memory nor the log may grow with them.
_NAMES_MAX = 1_000
_HANDLERS_SHOWN_MAX = 10
_NAME_CHARS_MAX = 60


@dataclass(slots=True)
class _Told:
    """When a kind was told, and how often it was not since."""

    at_s: float
    untold_count: int = 0


class FailureLog:
    """A kind of failure is a job name and an error type.

    Without messages a traceback shows where it happened, and none of the words of the error.
    """

    def __init__(self, *, tells_messages: bool = True) -> None:
        self._format = traceback.format_exception if tells_messages else _frames
        # Those told longest ago come first.
        self._told: dict[tuple[str, str], _Told] = {}

    @property
    def kind_count(self) -> int:
        """How many kinds are remembered, a thousand at most."""
        return len(self._told)

    def note(self, delivery: Delivery, error: BaseException, failure: Failure, fate: str) -> None:
        """Log a failure, unless one of its kind was logged a moment ago."""
        untold = self._untold((delivery.name, failure.error_type))
        if untold is None:
            return
        logger.warning(
            "a handler failed: %s\n%s", failure.text, self._trace(error),
            extra={
                "job_name": delivery.name, "job_id": delivery.job_id, "fate": fate,
                "run_number": delivery.run_number, "untold": untold,
            },
        )  # fmt: skip

    def note_crash_loop(self, delivery: Delivery, detail: str | None) -> None:
        """Log that a job went to the DLQ because its workers died, unless one of its name just did."""
        untold = self._untold((delivery.name, DlqReason.CRASH_LOOP))
        if untold is None:
            return
        logger.warning(
            "job %s (%s) is buried as crash_loop: %s; look for what ended the workers: a lack of "
            "memory, a crash in native code, or a kill",
            delivery.job_id, delivery.name or "no name", detail,
            extra={
                "job_name": delivery.name, "job_id": delivery.job_id,
                "run_number": delivery.run_number - 1, "untold": untold,
            },
        )  # fmt: skip

    def _untold(self, kind: tuple[str, str]) -> int | None:
        """How many of the kind were not logged since the last one; None: nor is this one."""
        now_s = time.monotonic()
        told = self._told.get(kind)
        if told is not None and now_s - told.at_s < _AGAIN_S:
            told.untold_count += 1
            return None
        self._remember(kind, now_s)
        return told.untold_count if told else 0

    def _remember(self, kind: tuple[str, str], now_s: float) -> None:
        self._told.pop(kind, None)
        # Names may be made up by whoever adds jobs.
        if len(self._told) >= _KINDS_MAX:
            del self._told[next(iter(self._told))]
        self._told[kind] = _Told(now_s)

    def _trace(self, error: BaseException) -> str:
        """The traceback in characters that any log can carry, whatever the error is made of."""
        try:
            text = "".join(self._format(error))
        except KeyboardInterrupt:
            raise
        except BaseException:  # noqa: BLE001 - a user's exception may resist being looked at
            return "<no traceback: the exception cannot be formatted>"
        return text.encode(errors="backslashreplace").decode()


class UnknownNameLog:
    """Warns of jobs that are put back for want of a handler: each name at once, then ever less often."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._paces: dict[str, Pace] = {}

    def note(
        self, delivery: Delivery, handlers: Sequence[str], failure: Failure, now_ms: float
    ) -> None:
        """Log that a job is put back, unless one of its name was logged a moment ago."""
        pace = self._pace_of(delivery.name)
        if pace is None or not pace.allows():
            return
        left_ms = unknown_since_ms(delivery, now_ms) + self._policy.unknown_name_for_ms - now_ms
        logger.warning(
            "job %s: %s; this worker has handlers for %s; the job is put back every %g s, without "
            "an attempt spent, until a worker with its handler takes it, and else is buried as "
            "unknown_name at %s, in %.0f s",
            delivery.job_id, failure.message, _listed(handlers),
            self._policy.unknown_name_retry_ms / 1000, _utc(now_ms + left_ms), left_ms / 1000,
            extra={
                "job_name": delivery.name, "job_id": delivery.job_id,
                "not_logged": pace.take_held_back(),
            },
        )  # fmt: skip

    def _pace_of(self, name: str) -> Pace | None:
        """When this name may be logged again; None: there are too many names to log them all."""
        pace = self._paces.get(name)
        if pace is None and len(self._paces) < _NAMES_MAX:
            pace = self._paces[name] = Pace()
        return pace


def _listed(names: Sequence[str]) -> str:
    """The first of many names, and how many more there are."""
    shown = ", ".join(repr(_shortened(name)) for name in names[:_HANDLERS_SHOWN_MAX])
    left_out = len(names) - _HANDLERS_SHOWN_MAX
    return f"{shown} and {left_out:,} more" if left_out > 0 else shown


def _shortened(name: str) -> str:
    return name if len(name) <= _NAME_CHARS_MAX else f"{name[:_NAME_CHARS_MAX]}…"


def _utc(at_ms: float) -> str:
    try:
        return datetime.fromtimestamp(at_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, OSError, ValueError):
        return "a time beyond all calendars"  # an extra of somebody else's may be any number


def _frames(error: BaseException) -> list[str]:
    # Not the lines themselves: a `raise` holds its words as they were written.
    frames = traceback.extract_tb(error.__traceback__)
    return [f'  File "{one.filename}", line {one.lineno}, in {one.name}\n' for one in frames]
