"""What a worker does beside its jobs, and everything that it needs to know."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from chasquimq.errors import SettingsError
from chasquimq.settings.connection import AbilitySettings
from chasquimq.settings.delivery import (
    AckSettings,
    LeaseSettings,
    ReadSettings,
    ResultSettings,
    RetrySettings,
)
from chasquimq.settings.rules import MIB, at_least, of_kind, true_or_false

Pool = Literal["thread", "process"]
EventLevel = Literal["off", "terminal", "full"]
# A full entry has a thousand attempts, each about 56 bytes.
HISTORY_BYTES_MIN = 64 * 1024
# Takes the type and the message of an error, and gives the message that may be stored.
Redact = Callable[[str, str], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpkeepSettings:
    """Promotion of delayed jobs and firing of repeatables."""

    delayed_enabled: bool = True
    poll_ms: int = 100
    promote_max: int = 256
    lock_ttl_s: int = 5
    run_scheduler: bool = True
    scheduler_tick_ms: int = 1_000
    # How many due specs are read at once, and under which name the scheduler leads.
    fire_max: int = 256
    scheduler_holder: str | None = None
    janitor_ms: int = 60_000
    # A longer DLQ is reported, never trimmed; None: not watched.
    dlq_len_max: int | None = None

    def __post_init__(self) -> None:
        true_or_false("delayed_enabled", self.delayed_enabled)
        true_or_false("run_scheduler", self.run_scheduler)
        at_least("scheduler_tick_ms", self.scheduler_tick_ms, 1)
        at_least("poll_ms", self.poll_ms, 1)
        at_least("promote_max", self.promote_max, 1)
        at_least("janitor_ms", self.janitor_ms, 1)
        at_least("lock_ttl_s", self.lock_ttl_s, 1)
        at_least("fire_max", self.fire_max, 1)
        if self.dlq_len_max is not None:
            at_least("dlq_max_stream_len", self.dlq_len_max, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSettings:
    """What goes to the events stream: nothing, ends, or starts and ends."""

    level: EventLevel = "full"
    max_stream_len: int = 100_000

    def __post_init__(self) -> None:
        if self.level not in ("off", "terminal", "full"):
            raise SettingsError("events", self.level, '"off", "terminal" or "full"')
        at_least("events_max_stream_len", self.max_stream_len, 1)

    @property
    def waiting_max(self) -> int:
        """The cap that promotion writes `waiting` under; 0 writes none."""
        return self.max_stream_len if self.level == "full" else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HistorySettings:
    """Whether finished attempts are kept, and in how many bytes of the server's memory."""

    is_kept: bool = True
    # About 600,000 attempts; older ones make room.
    max_bytes: int = 32 * MIB

    def __post_init__(self) -> None:
        true_or_false("history", self.is_kept)
        hint = "history=False keeps none"
        at_least("history_max_bytes", self.max_bytes, HISTORY_BYTES_MIN, hint=hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """Everything a worker needs to know, by concern."""

    concurrency: int = 100
    pool: Pool = "thread"
    # None: as many threads as jobs may run, as many processes as there are cores.
    pool_size: int | None = None
    timeout_ms: int | None = None
    shutdown_deadline_ms: int = 30_000
    # Jobs that wait beside free room for this long make health say so.
    stall_after_ms: int = 15_000
    redact: Redact | None = None
    # Whether the DLQ keeps where the last attempt of a dead job failed.
    keep_tracebacks: bool = True
    read: ReadSettings = field(default_factory=ReadSettings)
    ack: AckSettings = field(default_factory=AckSettings)
    lease: LeaseSettings = field(default_factory=LeaseSettings)
    retry: RetrySettings = field(default_factory=RetrySettings)
    results: ResultSettings = field(default_factory=ResultSettings)
    upkeep: UpkeepSettings = field(default_factory=UpkeepSettings)
    events: EventSettings = field(default_factory=EventSettings)
    history: HistorySettings = field(default_factory=HistorySettings)
    abilities: AbilitySettings = field(default_factory=AbilitySettings)

    def __post_init__(self) -> None:
        at_least("concurrency", self.concurrency, 1)
        at_least("shutdown_deadline_ms", self.shutdown_deadline_ms, 0)
        at_least("stall_after_ms", self.stall_after_ms, 1)
        if self.timeout_ms is not None:
            at_least("timeout_ms", self.timeout_ms, 1)
        if self.pool_size is not None:
            at_least("pool_size", self.pool_size, 1)
        if self.pool not in ("thread", "process"):
            raise SettingsError("pool", self.pool, '"thread" or "process"')
        true_or_false("keep_tracebacks", self.keep_tracebacks)
        of_kind("abilities", self.abilities, AbilitySettings)
        _check_redact(self.redact)


def _check_redact(redact: Redact | None) -> None:
    is_plain = callable(redact) and not inspect.iscoroutinefunction(redact)
    if redact is not None and not is_plain:
        raise SettingsError("redact", redact, "a plain function of an error's type and message")
