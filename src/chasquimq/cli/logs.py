"""Writes the log of a command that runs for long: a line each on stderr, as text or as JSON."""

from __future__ import annotations

import logging
import os
import re
import select
from typing import Any, TextIO

from chasquimq.cli.output.render import json_text, mask_secrets, shown
from chasquimq.cli.values import iso
from chasquimq.model.log import PREFIX

# How long a line waits for a reader that is slow.
_WAIT_MS = 100
LEVELS = ("debug", "info", "warning", "error")
# What every record has; the rest was given as `extra`.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

# What a line of JSON says of itself.
_RESERVED = frozenset({"time", "level", "logger", "message", "exception"})


def start_logging(level: str, *, as_json: bool) -> None:
    """Send the log of this process to stderr."""
    handler = Unblocked()
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


class Unblocked(logging.StreamHandler[TextIO]):
    """Writes to a stream that may be a pipe; where nobody reads it, lines are lost, and counted.

    A write to a full pipe would hold up the whole process: its jobs, its leases and its probes.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lost_count = 0

    def emit(self, record: logging.LogRecord) -> None:
        descriptor = _descriptor(self.stream)
        if descriptor is None:
            super().emit(record)
            return
        try:
            self._write(descriptor, f"{self.format(record)}\n")
        except Exception:  # noqa: BLE001  a log that fails stops nothing, as `logging` has it
            self.handleError(record)

    def _write(self, descriptor: int, line: str) -> None:
        # After a loss nobody is waited for until the pipe is read again.
        if not _has_room(descriptor, 0 if self._lost_count else _WAIT_MS):
            self._lost_count += 1
            return
        if self._lost_count:
            line = f"... {self._lost_count} lines of this log were lost: nobody read it\n{line}"
            self._lost_count = 0
        data = line.encode(errors="backslashreplace")
        for at in range(0, len(data), select.PIPE_BUF):
            if at and not _has_room(descriptor, _WAIT_MS):
                self._lost_count += 1
                return
            os.write(descriptor, data[at : at + select.PIPE_BUF])


def _descriptor(stream: TextIO | None) -> int | None:
    """None: there is no file behind it."""
    try:
        return stream.fileno() if stream is not None else None
    except (OSError, ValueError, AttributeError):
        return None


def _has_room(descriptor: int, wait_ms: int) -> bool:
    """Whether so much can be written that no pipe takes in two pieces."""
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return bool(poll.poll(wait_ms))


class TextFormatter(logging.Formatter):
    """Time, level, logger, sentence, and what it leaves out; no raw control byte, no password."""

    def format(self, record: logging.LogRecord) -> str:
        sentence, *rest = record.getMessage().split("\n")
        facts = [(key, value) for key, value in _extra(record).items() if value is not None]
        more = "".join(f" {key}={value}" for key, value in facts if not _is_said(value, sentence))
        line = f"{_moment(record)} {record.levelname} {record.name}: {sentence}{more}"
        if record.exc_info:
            rest += self.formatException(record.exc_info).split("\n")
        # Set in, so that no words of a stranger pass for a line of the log.
        lines = [line, *(f"  {one}" for one in rest if one)]
        return "\n".join(shown(one) for one in lines)


def _is_said(value: object, sentence: str) -> bool:
    """Whether the sentence has it as a word already."""
    text = re.escape(str(value))
    return bool(text) and re.search(rf"(?<![\w-]){text}(?![\w-])", sentence) is not None


class JsonFormatter(logging.Formatter):
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
