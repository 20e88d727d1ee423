"""What whoever adds jobs may set."""

from __future__ import annotations

from dataclasses import dataclass

from chasquimq.model.options import whole_number
from chasquimq.settings.rules import MIB, at_least

_ADD_TIMEOUT_MS_MAX = 90_000


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
    # Tell of delayed adds; the original never does.
    events_enabled: bool = False
    events_max_stream_len: int = 100_000

    def __post_init__(self) -> None:
        if self.max_stream_len is not None:
            at_least("max_stream_len", self.max_stream_len, 1)
        at_least("max_delay_secs", self.max_delay_secs, 0)
        at_least("max_payload_bytes", self.max_payload_bytes, 1)
        at_least("unique_for_ms", self.unique_for_ms, 1)
        at_least("unconfirmed_max_bytes", self.unconfirmed_max_bytes, 1)
        check_add_timeout(self.add_timeout_ms)
        at_least("events_max_stream_len", self.events_max_stream_len, 1)


def check_add_timeout(add_timeout_ms: int) -> int:
    """Refuse a time after which the server may have forgotten what it was sent."""
    return whole_number("add_timeout_ms", add_timeout_ms, 0, _ADD_TIMEOUT_MS_MAX)
