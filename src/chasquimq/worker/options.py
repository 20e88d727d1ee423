"""What users of a worker may set becomes settings, one concern at a time."""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import replace

from chasquimq.settings import (
    MAX_ATTEMPTS,
    EventLevel,
    EventSettings,
    ReadSettings,
    RetrySettings,
    UpkeepSettings,
    given,
)

_READ_BLOCK_MS_MAX = 500


def read_settings(
    count: int | None, block_ms: int | None, max_payload_bytes: int | None
) -> ReadSettings:
    """The original takes 0 for 1, and blocks for as long as it is told."""
    return given(
        ReadSettings,
        count=_at_least_one(count),
        block_ms=None if block_ms is None else _at_least_one(min(block_ms, _READ_BLOCK_MS_MAX)),
        max_payload_bytes=max_payload_bytes,
    )


def retry_settings(retry: RetrySettings | None, max_attempts: int) -> RetrySettings:
    """An explicit `max_attempts` wins over the one in `retry`."""
    if retry is not None and max_attempts == MAX_ATTEMPTS:
        return retry
    return replace(retry or RetrySettings(), max_attempts=max_attempts)


def event_settings(level: EventLevel, *, enabled: bool) -> EventSettings:
    """The original knows only on and off."""
    return EventSettings(level=level if enabled else "off")


def upkeep_settings(
    *,
    delayed_enabled: bool,
    run_scheduler: bool,
    scheduler_tick_ms: int | None,
    dlq_len_max: int | None,
) -> UpkeepSettings:
    """The original takes a tick of 0 for 1."""
    return given(
        UpkeepSettings,
        delayed_enabled=delayed_enabled,
        run_scheduler=run_scheduler,
        scheduler_tick_ms=_at_least_one(scheduler_tick_ms),
        dlq_len_max=dlq_len_max,
    )


def consumer_name() -> str:
    """A name that no other worker has."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


def _at_least_one(number: int | None) -> int | None:
    return 1 if number == 0 else number
