"""What users of a worker may set becomes settings, one concern at a time."""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import replace
from urllib.parse import urlsplit

from chasquimq.errors import SettingsError
from chasquimq.model.options import optional_whole, whole
from chasquimq.settings import (
    MAX_ATTEMPTS,
    ConnectionSettings,
    EventLevel,
    EventSettings,
    ReadSettings,
    RetrySettings,
    UpkeepSettings,
    given,
    of_kind,
    true_or_false,
)
from chasquimq.store.address import redact, url_of
from chasquimq.wire.names import check_consumer_id

_READ_BLOCK_MS_MAX = 5_000


def read_settings(
    count: int | None, block_ms: int | None, max_payload_bytes: int | None
) -> ReadSettings:
    """The original takes 0 for 1, and blocks for as long as it is told."""
    return given(
        ReadSettings,
        count=one_for_zero("read_count", count),
        block_ms=_block_ms(one_for_zero("read_block_ms", block_ms)),
        max_payload_bytes=max_payload_bytes,
    )


def retry_settings(retry: RetrySettings | None, max_attempts: int) -> RetrySettings:
    """An explicit `max_attempts` wins over the one in `retry`."""
    is_usual = whole("max_attempts", max_attempts) == MAX_ATTEMPTS
    if retry is None:
        return RetrySettings(max_attempts=max_attempts)
    of_kind("retry", retry, RetrySettings, hint="the runs of a job are max_attempts")
    return retry if is_usual else replace(retry, max_attempts=max_attempts)


def event_settings(level: EventLevel, *, enabled: bool) -> EventSettings:
    """The original knows only on and off."""
    true_or_false("events_enabled", enabled)
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
        scheduler_tick_ms=one_for_zero("scheduler_tick_ms", scheduler_tick_ms),
        dlq_len_max=dlq_len_max,
    )


def consumer_id_of(given_id: str | None) -> str:
    """The name that was given, or one that no other worker has."""
    return consumer_name() if given_id is None else check_consumer_id(given_id)


def consumer_name() -> str:
    """A name that no other worker has."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


def one_for_zero(name: str, number: int | None) -> int | None:
    """What the original makes of a 0."""
    return 1 if optional_whole(name, number) == 0 else number


def _block_ms(block_ms: int | None) -> int | None:
    return None if block_ms is None else min(block_ms, _READ_BLOCK_MS_MAX)


def refuse_other_server(named: ConnectionSettings, other: ConnectionSettings) -> None:
    """Refuse a server that is not the one that a worker names.

    Raises:
        SettingsError: they differ in more than what a credential provider knows.
    """
    if _compared(other) != _compared(named):
        rule = f"{redact(url_of(named))}, which this Worker names"
        hint = "leave it out here, or where the Worker is made"
        raise SettingsError("redis_url", redact(url_of(other)), rule, hint=hint)


def _compared(connection: ConnectionSettings) -> str:
    if connection.credential_provider is None:
        return url_of(connection)
    # Who is asked for user and password need not have them in the URL.
    parts = urlsplit(url_of(connection))
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
