"""The log of a command that runs for long: a line each on stderr, for people or for programs."""

from __future__ import annotations

import logging
from typing import Any

from chasquimq.cli.moment import iso
from chasquimq.cli.render import json_text, mask_secrets, shown
from chasquimq.model.log import PREFIX

LEVELS = ("debug", "info", "warning", "error")
# What every record has; the rest was given as `extra`.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

# What a line of JSON says of itself.
_RESERVED = frozenset({"time", "level", "logger", "message", "exception"})


def start_logging(level: str, *, as_json: bool) -> None:
    """Send the log of this process to stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if as_json else Lines())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


class Lines(logging.Formatter):
    """Time, level, logger, sentence, and what belongs to it; no raw control byte, no password."""

    def format(self, record: logging.LogRecord) -> str:
        more = "".join(f" {key}={value}" for key, value in _extra(record).items())
        sentence, *rest = record.getMessage().split("\n")
        line = f"{_moment(record)} {record.levelname} {record.name}: {sentence}{more}"
        if record.exc_info:
            rest += self.formatException(record.exc_info).split("\n")
        # Set in, so that no words of a stranger pass for a line of the log.
        lines = [line, *(f"  {one}" for one in rest if one)]
        return "\n".join(shown(one) for one in lines)


class JsonLines(logging.Formatter):
    """The same as one JSON document a line."""

    def format(self, record: logging.LogRecord) -> str:
        facts: dict[str, Any] = {
            "time": _moment(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_extra(record),
        }
        if record.exc_info:
            facts["exception"] = self.formatException(record.exc_info)
        return mask_secrets(json_text(facts))


def _moment(record: logging.LogRecord) -> str:
    return iso(int(record.created * 1000))


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    """What was given with the record; our own keys without their prefix, where they are free."""
    given = {key: value for key, value in vars(record).items() if key not in _STANDARD}
    return {_short(key, given): value for key, value in given.items()}


def _short(key: str, given: dict[str, Any]) -> str:
    short = key.removeprefix(PREFIX)
    return key if short in given or short in _RESERVED else short
