"""What whoever adds jobs may set."""

from __future__ import annotations

from dataclasses import dataclass

from chasquimq.model.options import whole_number
from chasquimq.settings.rules import MIB, at_least


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
        at_least("unconfirmed_max_bytes", self.unconfirmed_max_bytes, 1)
        whole_number("resend_within_ms", self.resend_within_ms, 0, 90_000)
        at_least("events_max_stream_len", self.events_max_stream_len, 1)
