"""Groups the settings of queues and workers, and checks them when they are made."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from chasquimq.errors import LimitExceeded, SettingsError
from chasquimq.model.job_options import duration_ms, whole, whole_number, with_field_hints
from chasquimq.model.snapshot import RECORD_PAUSE_MS_MIN

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from chasquimq.server.finder import ServerLookup

MIB = 1024 * 1024
Settings = TypeVar("Settings")
Group = TypeVar("Group", bound="DataclassInstance")


def at_least(name: str, found: int, floor: int, *, hint: str = "") -> None:
    """Refuse what is no whole number, and a number below its floor."""
    if whole(name, found) < floor:
        raise LimitExceeded(name, found, f"at least {floor}", hint=hint)


def number_at_least(name: str, found: float, floor: float) -> None:
    """The same where fractions are welcome."""
    # Callers lie.
    is_number = isinstance(found, int | float)  # pyright: ignore[reportUnnecessaryIsInstance]
    if isinstance(found, bool) or not is_number:
        raise SettingsError(name, found, "a number")
    if found < floor:
        raise LimitExceeded(name, found, f"at least {floor}")


def true_or_false(name: str, found: bool) -> None:
    """Refuse what only counts as one of them: "no" would count as True."""
    if not isinstance(found, bool):  # pyright: ignore[reportUnnecessaryIsInstance]  callers lie
        raise SettingsError(name, found, "True or False")


def of_kind(name: str, found: object, kind: type, *, hint: str = "") -> None:
    """Refuse what is no instance of that class."""
    if not isinstance(found, kind):
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        raise SettingsError(name, found, f"{article} {kind.__name__}", hint=hint)


def filled(
    kind: type[Group], what: str, group: Group | None, options: Mapping[str, Any], **fields: str
) -> Group:
    """A group of settings, with the keywords that stand for its fields; None leaves one out.

    Raises:
        SettingsError: `what` is of another kind, or a keyword and the group both say a field.
    """
    usual = kind()
    group = usual if group is None else group
    of_kind(what, group, kind)
    asked = {name: options[name] for name in fields if options.get(name) is not None}
    for name, value in asked.items():
        own = getattr(group, fields[name])
        if own != getattr(usual, fields[name]):
            rule = f"left out where {what} has {fields[name]}={own!r}"
            raise SettingsError(name, value, rule)
    return replace(group, **{fields[name]: value for name, value in asked.items()})


def given(kind: type[Settings], **values: Any) -> Settings:
    """Settings of that kind; a value of None leaves its default."""
    return kind(**{name: value for name, value in values.items() if value is not None})


CredentialProvider = Callable[[str], Awaitable[tuple[str | None, str | None]]]


@with_field_hints
@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """How to reach the server; never printed with its password.

    Without `url` the server is looked up when the first connection is dialled; connections that
    share a `lookup` go to the same one.
    """

    url: str | None = field(default=None, repr=False)
    lookup: ServerLookup | None = field(default=None, repr=False, compare=False)
    tls: bool = False
    insecure_tls: bool = False
    credential_provider: CredentialProvider | None = field(default=None, repr=False)
    connect_timeout_ms: int = 5_000
    command_timeout_ms: int = 10_000
    # In a cluster the connection goes to the node that holds this queue; empty: to any master.
    queue: str = ""

    def __post_init__(self) -> None:
        true_or_false("insecure_tls", self.insecure_tls)
        provider = self.credential_provider
        if provider is not None and not callable(provider):
            # What it is instead may be the password.
            found, rule = type(provider).__name__, "an async function of the server's address"
            raise SettingsError("credential_provider", found, rule)
        at_least("connect_timeout_ms", self.connect_timeout_ms, 1)
        at_least("command_timeout_ms", self.command_timeout_ms, 1)


@with_field_hints
@dataclass(frozen=True, slots=True, kw_only=True)
class AbilitySettings:
    """None lets the probe decide; False forces the fallback: one server can be tested both ways."""

    ack_delete: bool | None = None
    claim_on_read: bool | None = None
    idempotent_add: bool | None = None


# What an envelope adds to its payload at most: id, times, retry rule, extras.
ENVELOPE_BYTES = 4 * 1024
MAX_ATTEMPTS = 25
# A hundred years: beyond this the server's own clock arithmetic overflows.
TTL_MS_MAX = 100 * 365 * 24 * 3_600_000


@with_field_hints
@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSettings:
    """How much a worker takes at once, and how long it waits for more."""

    count: int | None = None
    # Of a worker that has nothing to do; a busy one never blocks longer than 500 ms.
    block_ms: int = 5_000
    held_bytes_max: int = 64 * MIB
    max_payload_bytes: int = MIB + ENVELOPE_BYTES

    def __post_init__(self) -> None:
        if self.count is not None:
            at_least("read_count", self.count, 1)
        at_least("read_block_ms", self.block_ms, 1)
        at_least("held_bytes_max", self.held_bytes_max, 1)
        at_least("max_payload_bytes", self.max_payload_bytes, 1)


@with_field_hints
@dataclass(frozen=True, slots=True, kw_only=True)
class AckSettings:
    """The ceiling of a group commit; acks leave at the end of each turn of the event loop."""

    batch_max: int = 256

    def __post_init__(self) -> None:
        whole_number("ack.batch_max", self.batch_max, 1, 1_000)


@with_field_hints
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
    def record_ms(self) -> int:
        """How often a worker renews what it says of itself."""
        return max(self.beat_ms, RECORD_PAUSE_MS_MIN)

    @property
    def lost_after_ms(self) -> int:
        """Without a renewal for this long, every lease counts as lost."""
        return self.lease_ms - max(50, self.lease_ms // 10)


@with_field_hints
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
        number_at_least("multiplier", self.multiplier, 0)
        at_least("jitter_ms", self.jitter_ms, 0)
        at_least("unknown_name_retry_ms", self.unknown_name_retry_ms, 1)
        at_least("unknown_name_for_ms", self.unknown_name_for_ms, 0)


@with_field_hints
@dataclass(frozen=True, slots=True, kw_only=True)
class ResultSettings:
    """Whether and how long return values are kept."""

    is_stored: bool = False
    ttl_ms: int = 3_600_000
    max_bytes: int = MIB

    def __post_init__(self) -> None:
        true_or_false("store_results", self.is_stored)
        at_least("result_ttl_ms", self.ttl_ms, 1)
        if self.ttl_ms > TTL_MS_MAX:
            raise LimitExceeded("result_ttl_ms", self.ttl_ms, f"at most {TTL_MS_MAX}")
        at_least("max_result_bytes", self.max_bytes, 1)

    @property
    def ttl_s(self) -> int:
        return -(-self.ttl_ms // 1000)

    @property
    def outcome_ttl_s(self) -> int:
        """Outlives the result, so that an expired one can be distinguished from none."""
        return 2 * self.ttl_s


_ADD_TIMEOUT_MS_MAX = 90_000


@with_field_hints
@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """What an add may do."""

    max_stream_len: int | None = None
    max_delay_secs: int = 30 * 24 * 3600
    max_payload_bytes: int = MIB
    unique_for_ms: int = 3_600_000
    # How much encoded data may wait for the server's answer before adders wait, too.
    unconfirmed_max_bytes: int = 64 * MIB
    resend: bool = True
    # The most time an add may take, resends and all; 0: a server that is away is not waited for.
    # Servers forget an idempotent id after 100 s, so a resend must come well before that.
    add_timeout_ms: int = 5_000
    # Write events for delayed adds; ChasquiMQ (Rust) never does.
    events_enabled: bool = False
    events_max_stream_len: int = 100_000

    def __post_init__(self) -> None:
        if self.max_stream_len is not None:
            at_least("max_stream_len", self.max_stream_len, 1)
        at_least("max_delay_secs", self.max_delay_secs, 0)
        at_least("max_payload_bytes", self.max_payload_bytes, 1)
        duration_ms("unique_for_ms", self.unique_for_ms)
        at_least("unconfirmed_max_bytes", self.unconfirmed_max_bytes, 1)
        check_add_timeout(self.add_timeout_ms)
        at_least("events_max_stream_len", self.events_max_stream_len, 1)


def check_add_timeout(add_timeout_ms: int) -> int:
    """Refuse a time after which the server may have forgotten what it was sent."""
    return whole_number("add_timeout_ms", add_timeout_ms, 0, _ADD_TIMEOUT_MS_MAX)


Pool = Literal["thread", "process"]
EventLevel = Literal["off", "terminal", "full"]
# A full entry has a thousand attempts, each about 56 bytes.
HISTORY_BYTES_MIN = 64 * 1024
# Takes the type and the message of an error, and gives the message that may be stored.
Redact = Callable[[str, str], str]


@with_field_hints
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


@with_field_hints
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


@with_field_hints
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


@with_field_hints
@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """Where plain functions run: threads of this process, or child processes."""

    kind: Pool = "thread"
    # None: as many threads as jobs may run, as many processes as there are cores.
    size: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in ("thread", "process"):
            raise SettingsError("pool", self.kind, '"thread" or "process"')
        if self.size is not None:
            at_least("pool_size", self.size, 1)


@with_field_hints
@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """Everything a worker needs to know, by concern."""

    concurrency: int = 100
    timeout_ms: int | None = None
    shutdown_deadline_ms: int = 30_000
    # Jobs that wait beside free room for this long make health say so.
    stall_after_ms: int = 15_000
    redact: Redact | None = None
    # Whether the DLQ keeps where the last attempt of a dead job failed.
    keep_tracebacks: bool = True
    pool: PoolSettings = field(default_factory=PoolSettings)
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
        true_or_false("keep_tracebacks", self.keep_tracebacks)
        of_kind("abilities", self.abilities, AbilitySettings)
        _check_redact(self.redact)


# What a Worker takes, and which keyword stands for a field that has another name.
WORKER_GROUPS: dict[str, type[DataclassInstance]] = {
    "retry": RetrySettings, "lease": LeaseSettings, "read": ReadSettings,
    "results": ResultSettings, "events": EventSettings, "history": HistorySettings,
    "pool": PoolSettings, "upkeep": UpkeepSettings,
}  # fmt: skip
WORKER_KEYWORDS = {
    "lease.lease_ms": "claim_min_idle_ms", "read.count": "read_count",
    "read.block_ms": "read_block_ms", "results.is_stored": "store_results",
    "results.ttl_ms": "result_ttl_ms", "results.max_bytes": "max_result_bytes",
    "events.level": "events", "history.is_kept": "history",
    "history.max_bytes": "history_max_bytes", "pool.kind": "pool", "pool.size": "pool_size",
    "upkeep.dlq_len_max": "dlq_max_stream_len",
}  # fmt: skip


def _check_redact(redact: Redact | None) -> None:
    is_plain = callable(redact) and not inspect.iscoroutinefunction(redact)
    if redact is not None and not is_plain:
        raise SettingsError("redact", redact, "a plain function of an error's type and message")


__all__ = [
    "ENVELOPE_BYTES",
    "MAX_ATTEMPTS",
    "MIB",
    "TTL_MS_MAX",
    "AbilitySettings",
    "AckSettings",
    "ConnectionSettings",
    "CredentialProvider",
    "EventLevel",
    "EventSettings",
    "HistorySettings",
    "LeaseSettings",
    "Pool",
    "PoolSettings",
    "ProducerSettings",
    "ReadSettings",
    "Redact",
    "ResultSettings",
    "RetrySettings",
    "UpkeepSettings",
    "WorkerSettings",
    "at_least",
    "check_add_timeout",
    "given",
    "number_at_least",
    "of_kind",
    "true_or_false",
]
