"""Every setting: frozen, grouped by concern, checked once at birth, passed whole."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from chasquimq.errors import LimitExceeded, SettingsError

DEFAULT_URL = "redis://127.0.0.1:6379"
MIB = 1024 * 1024
# What an envelope adds to its payload at most: id, times, retry rule, extras.
ENVELOPE_BYTES = 4 * 1024
MAX_ATTEMPTS = 25
# A hundred years: beyond this the server's own clock arithmetic overflows.
TTL_MS_MAX = 100 * 365 * 24 * 3_600_000
CredentialProvider = Callable[[str], Awaitable[tuple[str | None, str | None]]]
Pool = Literal["thread", "process"]
EventLevel = Literal["off", "terminal", "full"]
# Takes the type and the message of an error, and gives the message that may be stored.
Redact = Callable[[str, str], str]
Settings = TypeVar("Settings")


def at_least(name: str, found: float, floor: float) -> None:
    """Refuse what is no number, and a number below its floor."""
    # Callers lie.
    is_number = isinstance(found, int | float)  # pyright: ignore[reportUnnecessaryIsInstance]
    if isinstance(found, bool) or not is_number:
        raise SettingsError(name, found, "a number")
    if found < floor:
        raise LimitExceeded(name, found, f"at least {floor}")


def given(kind: type[Settings], **values: Any) -> Settings:
    """Settings of that kind; a value of None leaves its default."""
    return kind(**{name: value for name, value in values.items() if value is not None})


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """How to reach the server; never printed with its password."""

    url: str = field(default=DEFAULT_URL, repr=False)
    tls: bool = False
    insecure_tls: bool = False
    credential_provider: CredentialProvider | None = field(default=None, repr=False)
    connect_timeout_ms: int = 5_000
    command_timeout_ms: int = 10_000
    # In a cluster the connection goes to the node that holds this queue; empty: to any master.
    queue: str = ""

    def __post_init__(self) -> None:
        at_least("connect_timeout_ms", self.connect_timeout_ms, 1)
        at_least("command_timeout_ms", self.command_timeout_ms, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class AbilitySettings:
    """None lets the probe decide; False forces the fallback: one server can be tested both ways."""

    ack_delete: bool | None = None
    claim_on_read: bool | None = None
    idempotent_add: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """What an add may do."""

    max_stream_len: int | None = None
    max_delay_secs: int = 30 * 24 * 3600
    max_payload_bytes: int = MIB
    unique_for_ms: int = 3_600_000
    resend: bool = True
    # The server forgets an idempotent id after 100 s, so a resend must come well before that.
    resend_within_ms: int = 30_000
    # Tell of delayed adds; the original never does.
    events_enabled: bool = False
    events_max_stream_len: int = 100_000

    def __post_init__(self) -> None:
        if self.max_stream_len is not None:
            at_least("max_stream_len", self.max_stream_len, 1)
        at_least("max_delay_secs", self.max_delay_secs, 0)
        at_least("max_payload_bytes", self.max_payload_bytes, 1)
        at_least("unique_for_ms", self.unique_for_ms, 1)
        if not 0 <= self.resend_within_ms <= 90_000:
            raise SettingsError("resend_within_ms", self.resend_within_ms, "between 0 and 90000")
        at_least("events_max_stream_len", self.events_max_stream_len, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSettings:
    """How much a worker takes at once, and how long it waits for more."""

    count: int | None = None
    # A hand-back does not wake a blocked reader, so no read blocks longer than this.
    block_ms: int = 500
    held_bytes_max: int = 64 * MIB
    max_payload_bytes: int = MIB + ENVELOPE_BYTES

    def __post_init__(self) -> None:
        if self.count is not None:
            at_least("read_count", self.count, 1)
        at_least("read_block_ms", self.block_ms, 1)
        at_least("held_bytes_max", self.held_bytes_max, 1)
        at_least("max_payload_bytes", self.max_payload_bytes, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class AckSettings:
    """The ceiling of a group commit; acks leave at the end of each turn of the event loop."""

    batch_max: int = 256

    def __post_init__(self) -> None:
        if not 1 <= self.batch_max <= 1_000:
            raise SettingsError("ack.batch_max", self.batch_max, "between 1 and 1000")


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSettings:
    """How long a silent worker keeps its jobs."""

    lease_ms: int = 30_000
    # A delivery that waits longer than this without starting is uncharged.
    uncharge_after_ms: int = 100
    enabled: bool = True

    def __post_init__(self) -> None:
        at_least("claim_min_idle_ms", self.lease_ms, 200)
        at_least("uncharge_after_ms", self.uncharge_after_ms, 1)

    @property
    def beat_ms(self) -> int:
        return max(1, self.lease_ms // 3)

    @property
    def lost_after_ms(self) -> int:
        """Without a renewal for this long, every lease counts as lost."""
        return self.lease_ms - max(50, self.lease_ms // 10)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrySettings:
    """What a failed attempt costs when the job itself does not say."""

    max_attempts: int = MAX_ATTEMPTS
    initial_backoff_ms: int = 100
    max_backoff_ms: int = 30_000
    multiplier: float = 2.0
    jitter_ms: int = 100
    unknown_name_retry_ms: int = 5_000
    unknown_name_for_ms: int = 600_000

    def __post_init__(self) -> None:
        at_least("max_attempts", self.max_attempts, 1)
        at_least("initial_backoff_ms", self.initial_backoff_ms, 0)
        at_least("max_backoff_ms", self.max_backoff_ms, 0)
        at_least("multiplier", self.multiplier, 0)
        at_least("jitter_ms", self.jitter_ms, 0)
        at_least("unknown_name_retry_ms", self.unknown_name_retry_ms, 1)
        at_least("unknown_name_for_ms", self.unknown_name_for_ms, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultSettings:
    """Whether and how long return values are kept."""

    is_stored: bool = False
    ttl_ms: int = 3_600_000
    max_bytes: int = MIB

    def __post_init__(self) -> None:
        at_least("result_ttl_ms", self.ttl_ms, 1)
        if self.ttl_ms > TTL_MS_MAX:
            raise LimitExceeded("result_ttl_ms", self.ttl_ms, f"at most {TTL_MS_MAX}")
        at_least("max_result_bytes", self.max_bytes, 1)

    @property
    def ttl_s(self) -> int:
        return -(-self.ttl_ms // 1000)

    @property
    def outcome_ttl_s(self) -> int:
        """Outlives the result, so that an expired one can be told from none."""
        return 2 * self.ttl_s


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
        at_least("history_max_bytes", self.max_bytes, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """Everything a worker needs to know, by concern."""

    concurrency: int = 100
    pool: Pool = "thread"
    # None: as many threads as jobs may run, as many processes as there are cores.
    pool_size: int | None = None
    timeout_ms: int | None = None
    shutdown_deadline_ms: int = 30_000
    redact: Redact | None = None
    read: ReadSettings = ReadSettings()
    ack: AckSettings = AckSettings()
    lease: LeaseSettings = LeaseSettings()
    retry: RetrySettings = RetrySettings()
    results: ResultSettings = ResultSettings()
    upkeep: UpkeepSettings = UpkeepSettings()
    events: EventSettings = EventSettings()
    history: HistorySettings = HistorySettings()
    abilities: AbilitySettings = AbilitySettings()

    def __post_init__(self) -> None:
        at_least("concurrency", self.concurrency, 1)
        at_least("shutdown_deadline_ms", self.shutdown_deadline_ms, 0)
        if self.timeout_ms is not None:
            at_least("timeout_ms", self.timeout_ms, 1)
        if self.pool_size is not None:
            at_least("pool_size", self.pool_size, 1)
        if self.pool not in ("thread", "process"):
            raise SettingsError("pool", self.pool, '"thread" or "process"')
        _check_redact(self.redact)


def _check_redact(redact: Redact | None) -> None:
    is_plain = callable(redact) and not inspect.iscoroutinefunction(redact)
    if redact is not None and not is_plain:
        raise SettingsError("redact", redact, "a plain function of an error's type and message")
