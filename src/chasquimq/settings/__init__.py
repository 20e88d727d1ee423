"""Every setting: frozen, grouped by concern, checked once at birth, passed whole."""

from __future__ import annotations

from chasquimq.settings.connection import (
    AbilitySettings,
    ConnectionSettings,
    CredentialProvider,
)
from chasquimq.settings.delivery import (
    ENVELOPE_BYTES,
    MAX_ATTEMPTS,
    TTL_MS_MAX,
    AckSettings,
    LeaseSettings,
    ReadSettings,
    ResultSettings,
    RetrySettings,
)
from chasquimq.settings.producer import ProducerSettings, check_add_timeout
from chasquimq.settings.rules import MIB, at_least, given, number_at_least, of_kind, true_or_false
from chasquimq.settings.worker import (
    EventLevel,
    EventSettings,
    HistorySettings,
    Pool,
    Redact,
    UpkeepSettings,
    WorkerSettings,
)

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
