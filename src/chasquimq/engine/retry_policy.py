"""The retry settings of a worker as the rules that its failures are judged by."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chasquimq.model.backoff import BackoffDefaults
from chasquimq.model.verdict import RetryPolicy

if TYPE_CHECKING:
    from chasquimq.settings import RetrySettings


def policy_of(retry: RetrySettings) -> RetryPolicy:
    """The rules by which failed attempts are judged."""
    return RetryPolicy(
        max_attempts=retry.max_attempts,
        backoff=BackoffDefaults(
            initial_backoff_ms=retry.initial_backoff_ms,
            max_backoff_ms=retry.max_backoff_ms,
            multiplier=retry.multiplier,
            jitter_ms=retry.jitter_ms,
        ),
        unknown_name_retry_ms=retry.unknown_name_retry_ms,
        unknown_name_for_ms=retry.unknown_name_for_ms,
    )
