"""How a worker takes jobs, keeps them, and ends their attempts."""

from __future__ import annotations

from dataclasses import dataclass

from chasquimq.errors import LimitExceeded
from chasquimq.model.options import whole_number
from chasquimq.model.worker_record import RECORD_PAUSE_MS_MIN
from chasquimq.settings.rules import MIB, at_least, number_at_least, true_or_false

# What an envelope adds to its payload at most: id, times, retry rule, extras.
ENVELOPE_BYTES = 4 * 1024
MAX_ATTEMPTS = 25
# A hundred years: beyond this the server's own clock arithmetic overflows.
TTL_MS_MAX = 100 * 365 * 24 * 3_600_000


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


@dataclass(frozen=True, slots=True, kw_only=True)
class AckSettings:
    """The ceiling of a group commit; acks leave at the end of each turn of the event loop."""

    batch_max: int = 256

    def __post_init__(self) -> None:
        whole_number("ack.batch_max", self.batch_max, 1, 1_000)


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
        """Outlives the result, so that an expired one can be told from none."""
        return 2 * self.ttl_s
