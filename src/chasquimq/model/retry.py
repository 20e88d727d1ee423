"""Decides whether a job whose handler failed runs again, and when: the verdict and its wait."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from chasquimq.errors import DecodeError, RetryLater, UnrecoverableError
from chasquimq.model.delivery import Delivery, DlqReason, ready_ms
from chasquimq.model.job_options import EXPONENTIAL, FIXED, Backoff

# Keys of the extras of a job that no handler has the name of. ChasquiMQ (Rust) knows neither.
UNKNOWN_SINCE, UNKNOWN_UNTIL = "unknown_since_ms", "unknown_until_ms"
# Due times are floats to the server; beyond this they are no whole milliseconds any more.
_AFTER_MS_MAX = 2**52


class UnknownName(Exception):
    """No handler has this job's name; `handlers` are the known names, the most similar first."""

    def __init__(self, message: str = "", handlers: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.handlers = handlers


class Retry(msgspec.Struct, frozen=True, gc=False):
    """Run again later; `spent` is the number of attempts used by then."""

    after_ms: int
    spent: int


class Bury(msgspec.Struct, frozen=True, gc=False):
    """Give up: move the job to the DLQ."""

    reason: DlqReason


class HandlerLimits(msgspec.Struct, frozen=True, gc=False):
    """The limits of one handler's jobs; None means the worker's limit."""

    max_attempts: int | None = None
    backoff: Backoff | None = None
    timeout_ms: int | None = None


NO_LIMITS = HandlerLimits()


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The limits of a worker and of its handlers, for jobs without limits of their own."""

    max_attempts: int
    backoff: BackoffDefaults
    unknown_name_retry_ms: int
    unknown_name_for_ms: int
    timeout_ms: int | None = None
    # The limits of the handler of every name, where there is only one handler.
    any_name: HandlerLimits = NO_LIMITS
    by_name: Mapping[str, HandlerLimits] = field(default_factory=dict[str, HandlerLimits])

    def max_attempts_of(self, delivery: Delivery) -> int:
        """The job's own number of attempts, or its handler's, or the worker's."""
        own = delivery.retry.max_attempts if delivery.retry else None
        granted = self._limits_of(delivery).max_attempts if own is None else own
        return self.max_attempts if granted is None else granted

    def backoff_of(self, delivery: Delivery) -> Backoff | None:
        """The job's own rule, or its handler's; None: the worker's defaults."""
        own = delivery.retry.backoff if delivery.retry else None
        return own if own is not None else self._limits_of(delivery).backoff

    def timeout_ms_of(self, delivery: Delivery) -> int | None:
        """The job's own time limit, or its handler's, or the worker's."""
        granted = self._limits_of(delivery).timeout_ms
        return delivery.timeout_ms(self.timeout_ms if granted is None else granted)

    def _limits_of(self, delivery: Delivery) -> HandlerLimits:
        return self.by_name.get(delivery.name, self.any_name)


def judge_start(delivery: Delivery, policy: RetryPolicy, now_ms: float) -> Bury | None:
    """Return why the job must not start; None if it may."""
    if delivery.run_number > policy.max_attempts_of(delivery):
        return Bury(DlqReason.CRASH_LOOP if delivery.earlier else DlqReason.RETRIES_EXHAUSTED)
    if delivery.extras is not None and _is_expired(delivery, now_ms):
        return Bury(DlqReason.EXPIRED)
    return None


def judge(
    delivery: Delivery, error: BaseException, policy: RetryPolicy, dice: RandomSource, now_ms: float
) -> Retry | Bury:
    """Return what the handler's error means for its job."""
    run_number = delivery.run_number
    if isinstance(error, UnknownName):
        return _judge_unknown_name(delivery, policy, now_ms)
    if isinstance(error, RetryLater) and (after_ms := _asked_ms(error)) is not None:
        return Retry(after_ms, run_number - 1)
    if isinstance(error, UnrecoverableError):
        return Bury(DlqReason.UNRECOVERABLE)
    if isinstance(error, DecodeError):
        return Bury(DlqReason.DECODE_FAILED)
    if run_number >= policy.max_attempts_of(delivery):
        return Bury(DlqReason.RETRIES_EXHAUSTED)
    after_ms = delay_ms(run_number, policy.backoff_of(delivery), policy.backoff, dice)
    return Retry(min(after_ms, _AFTER_MS_MAX), run_number)


def is_at_once(verdict: Retry, delivery: Delivery) -> bool:
    """Return whether the next run need not wait.

    A snooze always waits a little: it spends no attempt, so a handler could ask for it forever.
    """
    return verdict.after_ms == 0 and verdict.spent == delivery.run_number


def unknown_since_ms(delivery: Delivery, now_ms: float) -> int:
    """When a worker first met this job without a handler for it."""
    since = (delivery.extras or {}).get(UNKNOWN_SINCE)
    return since if isinstance(since, int) else int(now_ms)


def handler_missing(delivery: Delivery, policy: RetryPolicy, now_ms: float) -> dict[str, int]:
    """The extras of a job that is put back for want of a handler: since when, and until when."""
    since_ms = unknown_since_ms(delivery, now_ms)
    return {UNKNOWN_SINCE: since_ms, UNKNOWN_UNTIL: since_ms + policy.unknown_name_for_ms}


def handler_found(delivery: Delivery) -> dict[str, int | None] | None:
    """What to take out of the extras of a job once a handler ran it; None where there is nothing."""
    is_marked = delivery.extras is not None and UNKNOWN_SINCE in delivery.extras
    return {UNKNOWN_SINCE: None, UNKNOWN_UNTIL: None} if is_marked else None


def handler_wait(name: str, extras: Mapping[str, Any] | None) -> dict[str, Any]:
    """What a job that is put back waits for, as fields of its state; {} where it has a handler."""
    since_ms = extras.get(UNKNOWN_SINCE) if extras else None
    if not extras or not isinstance(since_ms, int):
        return {}
    until_ms = extras.get(UNKNOWN_UNTIL)
    named = f"named {name!r}" if name else "for jobs without a name"
    return {
        "waits_for": f"a worker with a handler {named}",
        "waits_since_ms": since_ms,
        "waits_until_ms": until_ms if isinstance(until_ms, int) else None,
    }


def _asked_ms(error: RetryLater) -> int | None:
    """The wait a handler asked for; None where it is no time, so that it counts as a failure."""
    asked: Any = getattr(error, "delay_ms", None)  # users set anything, subclasses forget it
    if not isinstance(asked, int | float) or (isinstance(asked, float) and math.isnan(asked)):
        return None
    return int(min(max(0, asked), _AFTER_MS_MAX))


def _judge_unknown_name(delivery: Delivery, policy: RetryPolicy, now_ms: float) -> Retry | Bury:
    if now_ms - unknown_since_ms(delivery, now_ms) >= policy.unknown_name_for_ms:
        return Bury(DlqReason.UNKNOWN_NAME)
    return Retry(policy.unknown_name_retry_ms, delivery.run_number - 1)


def _is_expired(delivery: Delivery, now_ms: float) -> bool:
    expires_ms = (delivery.extras or {}).get("expires_ms")
    if not isinstance(expires_ms, int) or delivery.run_number > 1:
        return False
    return now_ms - ready_ms(delivery) > expires_ms


# ── how long to wait ──────────────────────────────────────────────────────────────────────────────


class BackoffDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """The backoff of a worker, for jobs without one of their own."""

    initial_backoff_ms: int = 100
    max_backoff_ms: int = 30_000
    multiplier: float = 2.0
    jitter_ms: int = 100


class RandomSource(Protocol):
    """Draws whole numbers like `random.Random`."""

    def randrange(self, start: int, /) -> int: ...


def delay_ms(n: int, backoff: Backoff | None, defaults: BackoffDefaults, rng: RandomSource) -> int:
    """Return the wait before retry `n`, counted from 1.

    Jitter only adds, after the cap, as in ChasquiMQ (Rust).
    """
    assert n >= 1, "the first retry is number 1"
    rule = backoff or Backoff(EXPONENTIAL, defaults.initial_backoff_ms, None, None, None)
    cap_ms = defaults.max_backoff_ms if rule.max_delay_ms is None else rule.max_delay_ms
    jitter_ms = defaults.jitter_ms if rule.jitter_ms is None else rule.jitter_ms
    if rule.kind == FIXED:
        wait_ms = min(rule.delay_ms, cap_ms)
    else:
        wait_ms = _capped(_grown_ms(n, rule, defaults), cap_ms)
    return wait_ms + (rng.randrange(jitter_ms) if jitter_ms else 0)


def _grown_ms(n: int, rule: Backoff, defaults: BackoffDefaults) -> float:
    multiplier = defaults.multiplier if rule.multiplier is None else rule.multiplier
    return rule.delay_ms * _power(multiplier, n - 1)


def _power(multiplier: float, exponent: int) -> float:
    try:
        return multiplier**exponent
    except OverflowError:
        return -math.inf if multiplier < 0 and exponent % 2 else math.inf


def _capped(base_ms: float, cap_ms: int) -> int:
    # Zero times infinity is NaN, and an unknown wait is the longest one.
    if math.isnan(base_ms) or base_ms >= cap_ms:
        return cap_ms
    return math.floor(max(0, base_ms))


def doubled_ms(failures: int, least_ms: int, most_ms: int) -> int:
    """The pause after so many failures in a row: twice as long each time, up to `most_ms`."""
    return min(most_ms, least_ms * 2 ** min(failures - 1, 20))
