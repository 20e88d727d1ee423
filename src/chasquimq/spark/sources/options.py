"""The options of the sources, read once into a frozen value that travels to the executors."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal, cast

from chasquimq.errors import LimitExceeded, SettingsError
from chasquimq.settings import ConnectionSettings
from chasquimq.spark.offsets import Position, parse_position
from chasquimq.store.net.address import dialled_url, normal_url
from chasquimq.wire.keys import check_queue_name

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
Edge = Literal["earliest", "latest"]
# Where to begin or end: at an edge everywhere, or at a place of its own for each queue named.
Place = Edge | dict[str, Position | Edge]

_URL: Final = "chasqui.redis.url"
_PATTERN = re.compile(r"[^\s{}\x00-\x1f]{1,256}")
_PLACE_RULE = 'earliest, latest, or JSON such as {"emails": "1700000000000-0"}'
_INT_MAX = 2**31 - 1
# The last millisecond of the year 9999 has fifteen digits.
_MS_DIGITS_MAX = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What a read was asked for; the URL may carry a password and is never printed."""

    url: str | None = field(default=None, repr=False)
    subscribe: tuple[str, ...] = ()
    subscribe_pattern: str = ""
    starting_offsets: Place = EARLIEST
    ending_offsets: Place = LATEST
    starting_timestamp_ms: int | None = None
    max_offsets_per_trigger: int = 250_000
    min_partitions: int = 2
    fail_on_data_loss: bool = True
    fetch_size: int = 5_000
    discover_every_ms: int = 10_000
    include_extra: bool = False
    filter_pushdown: bool = False

    @property
    def connection(self) -> ConnectionSettings:
        return ConnectionSettings(url=self.url)


def parse_options(given: Mapping[str, str], *, without: tuple[str, ...] = ()) -> SourceOptions:
    """Read what Spark hands over; `without` names options that this source does not have.

    Raises:
        SettingsError: an option is not known, or its value is refused.
    """
    known = {name.lower(): name for name in _READERS if name not in without}
    values: dict[str, Any] = {}
    for key, text in given.items():
        name = known.get(key.lower())
        if name is None:
            raise _unknown(key, list(known.values()))
        values[_attribute(name)] = _READERS[name](name, text)
    # Looked up once, where the query is planned: executors may run on other machines.
    if "url" not in values:
        values["url"] = dialled_url(ConnectionSettings())
    options = SourceOptions(**values)
    _check_together(options)
    return options


def _check_together(options: SourceOptions) -> None:
    if bool(options.subscribe) == bool(options.subscribe_pattern):
        found = "both" if options.subscribe else "neither"
        raise SettingsError(
            "subscribe or subscribePattern", found, "given, one of the two", hint=_SUBSCRIBE_HINT
        )
    if options.starting_timestamp_ms is not None and options.starting_offsets != EARLIEST:
        raise SettingsError(
            "startingTimestamp", options.starting_timestamp_ms, "given without startingOffsets"
        )
    for name in ("startingOffsets", "endingOffsets"):
        _check_named(name, getattr(options, _attribute(name)), options)


_SUBSCRIBE_HINT = "subscribe takes queue names with commas between, subscribePattern a glob"


def _check_named(name: str, place: Place, options: SourceOptions) -> None:
    if isinstance(place, str) or not options.subscribe:
        return
    strange = sorted(set(place) - set(options.subscribe))
    if strange:
        raise SettingsError(name, strange, "about queues that subscribe names")


def _unknown(key: str, known: list[str]) -> SettingsError:
    close = difflib.get_close_matches(key.lower(), [name.lower() for name in known], 1)
    meant = next((name for name in known if close and name.lower() == close[0]), "")
    hint = f"did you mean {meant}?" if meant else "the page spark-options lists them all"
    return SettingsError("an option", key, "one that this source knows", hint=hint)


def _attribute(name: str) -> str:
    if name == _URL:
        return "url"
    snake = re.sub(r"([A-Z])", r"_\1", name).lower()
    return f"{snake}_ms" if snake == "starting_timestamp" else snake


def _url(name: str, text: str) -> str:
    return normal_url(text)


def _names(name: str, text: str) -> tuple[str, ...]:
    names = [part.strip() for part in text.split(",") if part.strip()]
    if not names:
        raise SettingsError(name, text, "one or more queue names with commas between")
    return tuple(dict.fromkeys(check_queue_name(part) for part in names))


def _pattern(name: str, text: str) -> str:
    if not _PATTERN.fullmatch(text):
        rule = "a glob such as mail-* without white space and braces"
        raise SettingsError(name, text, rule)
    return text


def _place(name: str, text: str) -> Place:
    if text.strip().lower() in (EARLIEST, LATEST):
        return cast("Edge", text.strip().lower())
    try:
        given = json.loads(text)
    except ValueError:
        raise SettingsError(name, text, _PLACE_RULE) from None
    if not isinstance(given, dict) or not given:
        raise SettingsError(name, text, _PLACE_RULE)
    return {
        check_queue_name(queue): _position(name, where)
        for queue, where in cast("dict[str, Any]", given).items()
    }


def _position(name: str, where: object) -> Position | Edge:
    if where in (EARLIEST, LATEST):
        return where
    return parse_position(name, where if isinstance(where, str) else json.dumps(where))


def _moment_ms(name: str, text: str) -> int:
    if text.strip().isdecimal() and len(text.strip()) <= _MS_DIGITS_MAX:
        return int(text)
    rule = "milliseconds since 1970, or a time with its zone such as 2026-01-31T08:00:00Z"
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise SettingsError(name, text, rule) from None
    if moment.tzinfo is None:
        raise SettingsError(name, text, rule, hint="add Z for UTC")
    moment_ms = int(moment.timestamp() * 1_000)
    if moment_ms < 0:
        raise SettingsError(
            name, text, "in 1970 or later", hint="leave it out to begin with the first"
        )
    return moment_ms


def _count(name: str, text: str) -> int:
    if not text.strip().isdecimal():
        raise SettingsError(name, text, "a whole number")
    number = int(text)
    if not 1 <= number <= _INT_MAX:
        raise LimitExceeded(name, number, f"from 1 to {_INT_MAX}")
    return number


def _wait_ms(name: str, text: str) -> int:
    return 0 if text.strip() == "0" else _count(name, text)


def _truth(name: str, text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise SettingsError(name, text, "true or false")
    return text.strip().lower() == "true"


_READERS: Final = {
    _URL: _url,
    "subscribe": _names,
    "subscribePattern": _pattern,
    "startingOffsets": _place,
    "endingOffsets": _place,
    "startingTimestamp": _moment_ms,
    "maxOffsetsPerTrigger": _count,
    "minPartitions": _count,
    "failOnDataLoss": _truth,
    "fetchSize": _count,
    "discoverEveryMs": _wait_ms,
    "includeExtra": _truth,
    "filterPushdown": _truth,
}
OPTION_NAMES: Final = tuple(_READERS)
