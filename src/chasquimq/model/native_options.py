"""What the native handles take in dicts becomes arguments of a Queue; unknown keys mean nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from chasquimq.errors import SettingsError

_BACKOFF_KEYS = ("kind", "delay_ms", "max_delay_ms", "multiplier", "jitter_ms")
_PATTERN_KEYS = {"cron": ("kind", "expression", "tz"), "every": ("kind", "interval_ms")}
_POLICY_KEYS = {"fire-all": ("kind", "max_catchup")}
_BOUNDS = ("limit", "start_after_ms", "end_before_ms")


def job_arguments(opts: Any) -> dict[str, Any]:
    """The `id`, `name` and `retry` of one job, or of every job of a bulk."""
    given = _dict("opts", opts)
    retry = _optional("opts.retry", given.get("retry")) or {}
    backoff = _optional("retry.backoff", retry.get("backoff"))
    name = given.get("name")
    return {
        "name": "" if name is None else name,
        "job_id": given.get("id"),
        "attempts": retry.get("max_attempts"),
        "backoff": None if backoff is None else _known(backoff, _BACKOFF_KEYS),
    }


def repeat_arguments(spec: Any) -> dict[str, Any]:
    """What an upsert of a repeatable job takes; an empty `key` asks for the plan's own."""
    given = _dict("spec", spec)
    pattern = _nested("spec.pattern", _needed(given, "pattern"))
    policy = _optional("spec.missed_fires", given.get("missed_fires"))
    key = given.get("key")
    return {
        "name": _needed(given, "job_name"),
        "data": _needed(given, "payload"),
        "repeat": _of_kind(pattern, _PATTERN_KEYS),
        "missed_fires": None if policy is None else _of_kind(policy, _POLICY_KEYS),
        "key": None if key == "" else key,
        **{name: given.get(name) for name in _BOUNDS},
    }


def real_list(what: str, value: Any) -> list[Any]:
    """The value, if it is a list; a str or bytes would be a sequence as well."""
    if not isinstance(value, list):
        raise TypeError(f"{what} must be a list, got {value!r:.100}")
    return cast("list[Any]", value)


def _dict(what: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{what} must be a dict, got {value!r:.100}")
    return cast("dict[str, Any]", value)


def _nested(what: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise SettingsError(what, value, "a dict")
    return cast("dict[str, Any]", value)


def _optional(what: str, value: Any) -> dict[str, Any] | None:
    return None if value is None else _nested(what, value)


def _needed(given: Mapping[str, Any], key: str) -> Any:
    if given.get(key) is None:
        raise SettingsError("spec", sorted(given), f"a dict with {key!r}")
    return given[key]


def _of_kind(given: Mapping[str, Any], keys_of: Mapping[str, Iterable[str]]) -> dict[str, Any]:
    """Only what its kind has a use for; a kind that is none is refused by whoever reads it."""
    return _known(given, keys_of.get(str(given.get("kind")), ("kind",)))


def _known(given: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    return {key: given[key] for key in keys if given.get(key) is not None}
