"""Holds what a caller asks for one job, and turns it into checked values of the model.

Keywords that mean nothing are refused here too, for jobs and for groups of settings, with the
nearest that means something.
"""

from __future__ import annotations

import difflib
import inspect
import math
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol, TypeVar, cast

import msgspec

from chasquimq.errors import KindRefused, LimitExceeded, SettingsError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Function = TypeVar("Function", bound=Callable[..., Any])
Kind = TypeVar("Kind")
_U64_MAX = 2**64 - 1
# The server keeps times as floats; beyond this they are no whole milliseconds any more.
MS_MAX = 2**52
_FLOAT_MAX = sys.float_info.max
_EPOCH = datetime.fromtimestamp(0, UTC)
_BACKOFF_KEYS = ("delay_ms", "max_delay_ms", "multiplier", "jitter_ms")


FIXED = "fixed"
EXPONENTIAL = "exponential"
U32_MAX = 2**32 - 1
U32 = Annotated[int, msgspec.Meta(ge=0, le=U32_MAX)]
# The wire holds unsigned 64-bit numbers; MessagePack itself is the ceiling.
U64 = Annotated[int, msgspec.Meta(ge=0)]


class Backoff(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A job's own backoff; None in a slot means the worker's default.

    Every slot is required, because the wire counts them: use `fixed` or `exponential`. The wire
    carries the multiplier as a float, so it must be one; read from the wire it always is.
    """

    kind: str
    delay_ms: U64
    max_delay_ms: U64 | None
    multiplier: float | None
    jitter_ms: U64 | None

    @classmethod
    def fixed(cls, delay_ms: int, jitter_ms: int | None = None) -> Backoff:
        """Wait the same time before every run."""
        return cls(FIXED, delay_ms, None, None, jitter_ms)

    @classmethod
    def exponential(
        cls,
        delay_ms: int,
        *,
        multiplier: float | None = None,
        max_delay_ms: int | None = None,
        jitter_ms: int | None = None,
    ) -> Backoff:
        """Wait longer before each run, up to `max_delay_ms`."""
        factor = None if multiplier is None else float(multiplier)
        return cls(EXPONENTIAL, delay_ms, max_delay_ms, factor, jitter_ms)


class RetryOverride(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The retry settings of one job, which override those of its worker."""

    max_attempts: U32 | None
    backoff: Backoff | None


class BackoffLike(Protocol):
    """What `backoff=` takes besides a number and a dict."""

    def to_dict(self) -> dict[str, Any]: ...


class JobOptions(msgspec.Struct, frozen=True):
    """What a caller asks for one job, not checked yet; None leaves it to the queue or the worker.

    A new option of a job is a field here, a keyword of `Queue.add` and `Queue.add_unique`, and
    a line of `NewJob` or of the envelope: what lies between hands the options on as they are.
    """

    delay_ms: float | datetime | None = None
    delay: timedelta | None = None
    attempts: int | None = None
    backoff: float | BackoffLike | Mapping[str, Any] | None = None
    job_id: str | None = None
    expires_ms: int | None = None
    timeout_ms: int | None = None
    # A RepeatPattern and a MissedFiresPolicy, or their dicts: such a job is a plan.
    repeat: Any = None
    missed_fires: Any = None

    @classmethod
    def of(cls, job: Mapping[str, Any]) -> JobOptions:
        """The options in a mapping that has the name and data of its job, too.

        Raises:
            SettingsError: a key of it means nothing.
        """
        unknown = job.keys() - JOB_KEYS
        if unknown:
            rule = f"made of {', '.join(sorted(JOB_KEYS))}"
            raise SettingsError("a job", sorted(map(str, unknown)), rule)
        return cls(**{key: value for key, value in job.items() if key in OPTION_KEYS})

    @property
    def is_plan(self) -> bool:
        """Whether the job repeats; one that only says what to do with missed fires is refused."""
        return self.repeat is not None or self.missed_fires is not None

    def given(self) -> dict[str, Any]:
        """Those that were asked for, by name."""
        return {
            key: value for key, value in msgspec.structs.asdict(self).items() if value is not None
        }

    def retry(self) -> RetryOverride | None:
        """The retry part of an envelope; None when the job asks for nothing of its own."""
        return retry_override(self.attempts, self.backoff)

    def wait(self, delay_s_max: int, now_ms: int) -> Wait | None:
        """When the job becomes due; None when it is ready now."""
        return wait_of(self.delay_ms, self.delay, delay_s_max, now_ms)


OPTION_KEYS: Final = frozenset(JobOptions.__struct_fields__)
JOB_KEYS: Final = OPTION_KEYS | {"name", "data"}
# In the order of the fields: what a plain add asks for.
NO_OPTIONS: Final = (None,) * len(OPTION_KEYS)


def retry_override(
    attempts: int | None, backoff: float | BackoffLike | Mapping[str, Any] | None
) -> RetryOverride | None:
    """The retry part of an envelope; None when the job asks for nothing of its own."""
    if attempts is None and backoff is None:
        return None
    return RetryOverride(
        None if attempts is None else whole_number("attempts", attempts, 1, U32_MAX),
        None if backoff is None else _backoff(backoff),
    )


def whole(name: str, value: Any) -> int:
    """The value as an int, refused unless it is one."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise SettingsError(name, value, "a whole number")
    return int(value)


def whole_number(name: str, value: Any, least: int, most: int = _U64_MAX) -> int:
    """The value as an int, refused unless it is a whole number in range."""
    number = whole(name, value)
    if not least <= number <= most:
        raise LimitExceeded(name, value, f"between {least} and {most}")
    return number


def optional_whole(name: str, value: Any) -> int | None:
    """A whole number, or None."""
    return None if value is None else whole(name, value)


def duration_ms(name: str, value: Any) -> int:
    """A duration of at least a millisecond that every clock can add to its time."""
    return whole_number(name, value, 1, MS_MAX)


def optional_ms(name: str, value: Any) -> int | None:
    """Such a duration, or None."""
    return None if value is None else duration_ms(name, value)


def _backoff(backoff: Any) -> Backoff:
    if isinstance(backoff, int | float) and not isinstance(backoff, bool):
        return Backoff.fixed(_milliseconds("backoff", backoff))
    given = cast(
        "Mapping[str, Any]", backoff if isinstance(backoff, Mapping) else _dict_of(backoff)
    )
    kind = given.get("kind")
    if kind not in (FIXED, EXPONENTIAL):
        raise SettingsError("backoff kind", kind, f'"{FIXED}" or "{EXPONENTIAL}"')
    unknown = set(given) - {"kind", *_BACKOFF_KEYS}
    if unknown:
        raise SettingsError(
            "backoff", sorted(map(str, unknown)), f"made of kind, {', '.join(_BACKOFF_KEYS)}"
        )
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
        raise KindRefused("backoff", backoff, "a number of ms, a BackoffSpec or a dict")
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
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # An int may be too large to be a float, though none is infinite.
    if not is_number or not -_FLOAT_MAX <= value <= _FLOAT_MAX:
        raise SettingsError("backoff multiplier", value, "a finite number")
    return float(value)


class Wait(msgspec.Struct, frozen=True, gc=False):
    """When a job becomes due: so long from now, or at an instant of the server's clock."""

    ms: int
    is_absolute: bool


def wait_of(delay_ms: Any, delay: Any, delay_s_max: int, now_ms: int) -> Wait | None:
    """What `delay_ms=` and `delay=` ask for; None when the job is ready now."""
    if delay_ms is None and delay is None:
        return None
    if delay_ms is not None and delay is not None:
        raise SettingsError("delay_ms and delay", (delay_ms, delay), "given one at a time")
    if isinstance(delay_ms, datetime):
        return _wait_until(delay_ms, delay_s_max, now_ms)
    ms = _timedelta_ms(delay) if delay_ms is None else _delay_number(delay_ms)
    _check_reach(ms, delay_s_max)
    return Wait(ms, is_absolute=False) if ms else None


def _wait_until(instant: datetime, delay_s_max: int, now_ms: int) -> Wait:
    aware = instant if instant.tzinfo else instant.replace(tzinfo=UTC)
    due_ms = (aware - _EPOCH) // timedelta(milliseconds=1)
    if due_ms < 0:
        raise SettingsError("delay_ms", instant, "an instant after 1970")
    _check_reach(due_ms - now_ms, delay_s_max)
    return Wait(due_ms, is_absolute=True)


def _delay_number(delay_ms: Any) -> int:
    if isinstance(delay_ms, bool) or not isinstance(delay_ms, int | float):
        hint = "five seconds are 5000, or delay=timedelta(seconds=5)"
        raise KindRefused("delay_ms", delay_ms, "a number of milliseconds or a datetime", hint=hint)
    if not 0 <= delay_ms < math.inf:
        raise SettingsError("delay_ms", delay_ms, "a finite number of at least 0")
    return int(delay_ms)


def _timedelta_ms(delay: Any) -> int:
    if not isinstance(delay, timedelta):
        hint = "a number of milliseconds or a datetime goes into delay_ms"
        raise KindRefused("delay", delay, "a timedelta", hint=hint)
    ms = delay // timedelta(milliseconds=1)
    if ms < 0:
        raise SettingsError("delay", delay, "at least zero")
    return ms


def _check_reach(ms: int, delay_s_max: int) -> None:
    reach_s = delay_s_max or MS_MAX // 1000
    if ms // 1000 > reach_s:
        raise LimitExceeded(
            "delay", f"{ms // 1000} s", f"at most {reach_s} s", hint="raise max_delay_secs"
        )


_RULE = '"server", "fsync" or "replica:n" with n of at least 1'
_REPLICA = re.compile(r"replica:([1-9]\d{0,3})")


@dataclass(frozen=True, slots=True)
class Durability:
    """`server` trusts the server's answer; the others wait for a disk or for replicas."""

    is_on_disk: bool = False
    replica_count: int = 0

    @property
    def waits(self) -> bool:
        return self.is_on_disk or self.replica_count > 0

    def __str__(self) -> str:
        if self.is_on_disk:
            return "fsync"
        return f"replica:{self.replica_count}" if self.replica_count else "server"


SERVER = Durability()


def parse_durability(text: str | Durability | None) -> Durability:
    """The class of that name."""
    if text is None:
        return SERVER
    if isinstance(text, Durability):
        return text
    if text == "server":
        return SERVER
    if text == "fsync":
        return Durability(is_on_disk=True)
    # Callers lie.
    is_text = isinstance(text, str)  # pyright: ignore[reportUnnecessaryIsInstance]
    found = _REPLICA.fullmatch(text) if is_text else None
    if found is None:
        raise SettingsError("durability", text, _RULE)
    return Durability(replica_count=int(found[1]))


def shows_options(known: type, **defaults: Any) -> Callable[[Function], Function]:
    """Show the keys of a TypedDict in a signature instead of the `**options` that takes them."""
    keys = inspect.get_annotations(known)

    def shown(function: Function) -> Function:
        signature = inspect.signature(function)
        own = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
        more = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=defaults.get(name),
                annotation=getattr(keys[name], "__forward_arg__", keys[name]),
            )
            for name in keys
        ]  # fmt: skip
        vars(function)["__signature__"] = signature.replace(parameters=[*own, *more])
        return function

    return shown


def refuse_unknown(
    what: type,
    options: Mapping[str, Any],
    known: type,
    groups: Mapping[str, type[DataclassInstance]],
    keywords: Mapping[str, str],
) -> None:
    """Refuse keywords that mean nothing, as Python does, with the nearest that means something.

    `groups` are the kinds of its groups; `keywords` stand for fields, as in "lease.lease_ms".
    """
    for name in options.keys() - inspect.get_annotations(known).keys():
        hint = _as_field(name, groups, keywords) or _nearest(what, name)
        raise TypeError(f"{what.__name__} takes no argument {name!r}; {hint}")


# What other queues call it, where the nearest name would mislead.
_NAMES_ELSEWHERE = {
    "max_retries": "max_attempts", "retries": "max_attempts", "max_tries": "max_attempts",
    "url": "redis_url", "broker_url": "redis_url", "broker": "redis_url",
    "time_limit": "timeout_ms", "timeout": "timeout_ms", "task_time_limit": "timeout_ms",
}  # fmt: skip


def with_field_hints(kind: type[Kind]) -> type[Kind]:
    """Let a dataclass refuse a keyword that is no field of it with the nearest that is one."""
    init: Callable[..., None] = kind.__init__
    names = inspect.get_annotations(kind).keys()

    @wraps(init)
    def __init__(self: Kind, *args: Any, **values: Any) -> None:  # noqa: N807 - it is one
        for name in values.keys() - names:
            raise TypeError(f"{kind.__name__} takes no argument {name!r}; {_nearest(kind, name)}")
        init(self, *args, **values)

    type.__setattr__(kind, "__init__", __init__)
    return kind


def _as_field(
    name: str, groups: Mapping[str, type[DataclassInstance]], keywords: Mapping[str, str]
) -> str:
    """How to give the field of that name; empty where no group has it."""
    found: list[str] = []
    for group, kind in groups.items():
        if name in (field.name for field in fields(kind)):
            keyword = keywords.get(f"{group}.{name}")
            way = f"{group}={kind.__name__}({name}=…)" + (f" or {keyword}=…" if keyword else "")
            found.append(f"{name!r} is a field of {kind.__name__}: give {way}")
    return "; ".join(found)


def _nearest(what: type, name: str) -> str:
    known = inspect.signature(what).parameters
    elsewhere = _NAMES_ELSEWHERE.get(name, "")
    near = [elsewhere] if elsewhere in known else difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {near[0]!r}?" if near else f"help({what.__name__}) lists them"
