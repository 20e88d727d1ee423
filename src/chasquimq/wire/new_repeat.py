"""What a caller wants repeated becomes a spec ready to be written: checked whole, then spelled."""

from __future__ import annotations

import msgspec

from chasquimq.errors import SettingsError
from chasquimq.model.backoff import RetryOverride
from chasquimq.model.options import whole_number
from chasquimq.model.schedule import INSTANT_MS_MAX, Every, MissedFires, Pattern, first_fire
from chasquimq.wire.names import check_job_name, check_spec_key
from chasquimq.wire.repeat_spec import RepeatSpec, encode_spec, resolve_key

_encode = msgspec.msgpack.Encoder().encode


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """How often a spec fires at most, and between which instants."""

    limit: int | None = None
    start_after_ms: int | None = None
    end_before_ms: int | None = None

    def __post_init__(self) -> None:
        _check("limit", self.limit, 1)
        _check("start_after_ms", self.start_after_ms, 0)
        _check("end_before_ms", self.end_before_ms, 0)
        start_ms, end_ms = self.start_after_ms, self.end_before_ms
        if start_ms is not None and end_ms is not None and end_ms <= start_ms:
            raise SettingsError("end_before_ms", end_ms, f"after start_after_ms, {start_ms}")


class NewRepeat(msgspec.Struct, frozen=True):
    """A spec ready to be written; `retry` is empty where its jobs ask for nothing of their own."""

    key: str
    spec: bytes
    retry: bytes
    pattern: Pattern
    bounds: Bounds

    def first_fire_ms(self, now_ms: int) -> int:
        """Its first window; SettingsError when there is none before its end."""
        bounds = self.bounds
        return first_fire(self.pattern, now_ms, bounds.start_after_ms, bounds.end_before_ms)


def spell_repeat(
    name: str,
    payload: bytes,
    pattern: Pattern,
    policy: MissedFires,
    bounds: Bounds,
    retry: RetryOverride | None = None,
    key: str | None = None,
) -> NewRepeat:
    """One spec, under the caller's key or under that of its name and pattern.

    Raises:
        SettingsError: the name or the key was refused.
    """
    interval_ms, expression, tz = _parts(pattern)
    key = check_spec_key(key) if key is not None else _own_key(name, pattern)
    spec = RepeatSpec(
        key=key,
        job_name=check_job_name(name),
        kind="cron" if interval_ms is None else "every",
        payload=payload,
        interval_ms=interval_ms,
        expression=expression,
        tz=tz,
        limit=bounds.limit,
        start_after_ms=bounds.start_after_ms,
        end_before_ms=bounds.end_before_ms,
        missed_fires=policy.kind,
        max_catchup=policy.max_catchup,
    )
    return NewRepeat(key, encode_spec(spec), _encode(retry) if retry else b"", pattern, bounds)


def _own_key(name: str, pattern: Pattern) -> str:
    interval_ms, expression, tz = _parts(pattern)
    name = check_job_name(name)
    return check_spec_key(resolve_key(name, interval_ms=interval_ms, expression=expression, tz=tz))


def _parts(pattern: Pattern) -> tuple[int | None, str | None, str | None]:
    if isinstance(pattern, Every):
        return pattern.interval_ms, None, None
    return None, pattern.expression, pattern.tz


def _check(name: str, value: int | None, least: int) -> None:
    if value is not None:
        whole_number(name, value, least, INSTANT_MS_MAX)
