"""Value types that users hand to a queue: when a job repeats, and how long a retry waits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Self

from chasquimq.errors import KindRefused, SettingsError
from chasquimq.model.json_value import JsonForm, ToDict

_PATTERN_KEYS = {"cron": ("expression", "tz"), "every": ("interval_ms",)}
_POLICY_KEYS: dict[str, tuple[str, ...]] = {
    "skip": (),
    "fire-once": (),
    "fire-all": ("max_catchup",),
}


@dataclass(frozen=True)
class RepeatPattern(ToDict):
    """When a job repeats: by a wall clock, or again and again after an interval."""

    kind: str
    expression: str | None = None
    tz: str | None = None
    interval_ms: int | None = None

    @classmethod
    def cron(cls, expression: str, *, tz: str | None = None) -> RepeatPattern:
        """Whenever a clock in that zone (None: UTC) shows one of the expression's times."""
        return cls("cron", expression=expression, tz=tz)

    @classmethod
    def every(cls, interval_ms: int) -> RepeatPattern:
        """This many milliseconds apart; the first comes one interval from now."""
        return cls("every", interval_ms=interval_ms)

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Self:
        """The pattern of a dict such as `to_dict` gives."""
        _check_keys("repeat", given, _PATTERN_KEYS, optional={"tz"})
        return cls(**given)

    def to_dict(self) -> dict[str, Any]:
        """The dict form; what is not set is left out."""
        return _set_only(self)


@dataclass(frozen=True)
class MissedFiresPolicy(ToDict):
    """What to do about fires that were due while no scheduler was running."""

    kind: str
    max_catchup: int | None = None

    @classmethod
    def skip(cls) -> MissedFiresPolicy:
        """They are skipped, except for the newest, which comes late; the default."""
        return cls("skip")

    @classmethod
    def fire_once(cls) -> MissedFiresPolicy:
        """One job stands for all of them."""
        return cls("fire-once")

    @classmethod
    def fire_all(cls, max_catchup: int) -> MissedFiresPolicy:
        """Each and the newest become a job, oldest first, at most `max_catchup` in all."""
        # Arguments of users may be of any type.
        is_number = isinstance(max_catchup, int)  # pyright: ignore[reportUnnecessaryIsInstance]
        if not is_number or isinstance(max_catchup, bool):
            raise KindRefused("max_catchup", max_catchup, "an int")
        if max_catchup < 1:
            raise SettingsError("max_catchup", max_catchup, "at least 1")
        return cls("fire-all", max_catchup)

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Self:
        """The policy of a dict such as `to_dict` gives."""
        _check_keys("missed_fires", given, _POLICY_KEYS)
        return cls(**given)

    def to_dict(self) -> dict[str, Any]:
        """The dict form; what is not set is left out."""
        return _set_only(self)


@dataclass(frozen=True)
class RepeatableMeta(ToDict):
    """A repeatable job as listed; `missed_fires` None means that missed windows are skipped."""

    key: str
    job_name: str
    pattern: RepeatPattern
    next_fire_ms: int
    limit: int | None = None
    start_after_ms: int | None = None
    end_before_ms: int | None = None
    missed_fires: MissedFiresPolicy | None = None

    def to_dict(self) -> dict[str, Any]:
        """The dict form, pattern and policy in theirs; what is not set is left out."""
        given = _set_only(self)
        given["pattern"] = self.pattern.to_dict()
        if self.missed_fires is not None:
            given["missed_fires"] = self.missed_fires.to_dict()
        return given


@dataclass(frozen=True)
class QuarantinedRepeatable(ToDict):
    """A spec that could not fire and was quarantined; `spec` holds its stored bytes."""

    key: str
    reason: str
    spec: Annotated[bytes, JsonForm()]
    quarantined_at_ms: int


@dataclass(frozen=True)
class BackoffSpec(ToDict):
    """How long a failed job waits; None leaves a value to the worker."""

    kind: str
    delay_ms: int
    max_delay_ms: int | None = None
    multiplier: float | None = None
    jitter_ms: int | None = None

    @classmethod
    def fixed(cls, delay_ms: int, jitter_ms: int | None = None) -> BackoffSpec:
        """The same wait every time."""
        return cls("fixed", delay_ms, jitter_ms=jitter_ms)

    @classmethod
    def exponential(
        cls,
        initial_ms: int,
        *,
        multiplier: float = 2.0,
        max_ms: int | None = None,
        jitter_ms: int | None = None,
    ) -> BackoffSpec:
        """A wait that grows with each attempt, up to `max_ms`."""
        return cls("exponential", initial_ms, max_ms, multiplier, jitter_ms)

    def to_dict(self) -> dict[str, Any]:
        """The dict form; unset values are left out."""
        return _set_only(self)


def _set_only(value: Any) -> dict[str, Any]:
    return {key: found for key, found in asdict(value).items() if found is not None}


def _check_keys(
    what: str,
    given: Mapping[str, Any],
    keys_of: Mapping[str, tuple[str, ...]],
    optional: frozenset[str] | set[str] = frozenset(),
) -> None:
    kind = given.get("kind")
    if not isinstance(kind, str) or kind not in keys_of:
        raise SettingsError(f"{what} kind", kind, f"one of {', '.join(keys_of)}")
    known = set(keys_of[kind])
    found = given.keys() - {"kind"}
    if not known - optional <= found <= known:
        rule = f"made of {', '.join(('kind', *keys_of[kind]))}"
        raise SettingsError(what, dict(given), rule)
