"""Checks what a caller asks for one job and turns it into values of the model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

from chasquimq.errors import LimitExceeded, SettingsError
from chasquimq.model.backoff import EXPONENTIAL, FIXED, U32_MAX, Backoff, RetryOverride

_U64_MAX = 2**64 - 1
_BACKOFF_KEYS = ("delay_ms", "max_delay_ms", "multiplier", "jitter_ms")


class BackoffLike(Protocol):
    """What `backoff=` takes besides a number and a dict."""

    def to_dict(self) -> dict[str, Any]: ...


def retry_override(
    attempts: int | None, backoff: int | float | BackoffLike | Mapping[str, Any] | None
) -> RetryOverride | None:
    """The retry part of an envelope; None when the job asks for nothing of its own."""
    if attempts is None and backoff is None:
        return None
    return RetryOverride(
        None if attempts is None else whole_number("attempts", attempts, 1, U32_MAX),
        None if backoff is None else _backoff(backoff),
    )


def whole_number(name: str, value: Any, least: int, most: int = _U64_MAX) -> int:
    """The value as an int, refused unless it is a whole number in range."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise SettingsError(name, value, "a whole number")
    if not least <= value <= most:
        raise LimitExceeded(name, value, f"between {least} and {most}")
    return int(value)


def optional_ms(name: str, value: Any) -> int | None:
    """A duration of at least a millisecond, or None."""
    return None if value is None else whole_number(name, value, 1)


def _backoff(backoff: Any) -> Backoff:
    if isinstance(backoff, int | float) and not isinstance(backoff, bool):
        return Backoff.fixed(_milliseconds("backoff", backoff))
    given = backoff if isinstance(backoff, Mapping) else _dict_of(backoff)
    kind = given.get("kind")
    if kind not in (FIXED, EXPONENTIAL):
        raise SettingsError("backoff kind", kind, f'"{FIXED}" or "{EXPONENTIAL}"')
    unknown = set(given) - {"kind", *_BACKOFF_KEYS}
    if unknown:
        raise SettingsError("backoff", sorted(unknown), f"made of kind, {', '.join(_BACKOFF_KEYS)}")
    if "delay_ms" not in given:
        raise SettingsError("backoff", dict(given), "given with delay_ms")
    return Backoff(
        kind,
        _milliseconds("backoff delay_ms", given["delay_ms"]),
        _maybe_ms("backoff max_delay_ms", given.get("max_delay_ms")),
        _multiplier(given.get("multiplier")),
        _maybe_ms("backoff jitter_ms", given.get("jitter_ms")),
    )


def _dict_of(backoff: Any) -> dict[str, Any]:
    to_dict = getattr(backoff, "to_dict", None)
    if to_dict is None:
        raise TypeError(
            f"backoff must be a number of ms, a BackoffSpec or a dict, got {backoff!r}"
        )
    return to_dict()


def _maybe_ms(name: str, value: Any) -> int | None:
    return None if value is None else _milliseconds(name, value)


def _milliseconds(name: str, value: Any) -> int:
    if isinstance(value, float) and math.isfinite(value):
        value = int(value)
    return whole_number(name, value, 0)


def _multiplier(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise SettingsError("backoff multiplier", value, "a finite number")
    return float(value)
