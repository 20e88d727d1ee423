"""Serves commands that run until a signal: their log, their signals, their address for scrapers."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import re
import select
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

import click

from chasquimq.cli import interrupts
from chasquimq.cli.interrupts import EXIT_INTERRUPTED
from chasquimq.cli.output.render import json_text, mask_secrets, shown, talk
from chasquimq.cli.values import iso
from chasquimq.errors import StoreError
from chasquimq.model.log import PREFIX

if TYPE_CHECKING:
    from chasquimq.telemetry.http import MetricsServer

# How long a line waits for a reader that is slow.
_WAIT_MS = 100
LEVELS = ("debug", "info", "warning", "error")
# What every record has; the rest was given as `extra`.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

# What a line of JSON says of itself.
_RESERVED = frozenset({"time", "level", "logger", "message", "exception"})
# Signals belong to the process, and so does what came of them.
_terms: list[int] = []
LOOPBACK = "127.0.0.1"
# These are about the port; whatever else goes wrong is about the address.
_PORT_ERRORS = (errno.EADDRINUSE, errno.EACCES)


def start_logging(level: str, *, as_json: bool) -> None:
    """Send the log of this process to stderr."""
    handler = Unblocked()
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


class Unblocked(logging.StreamHandler[TextIO]):
    """Writes to a stream that may be a pipe; where it is not read, lines are lost, and counted.

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
        # After a loss no line waits until the pipe is read again.
        if not _has_room(descriptor, 0 if self._lost_count else _WAIT_MS):
            self._lost_count += 1
            return
        if self._lost_count:
            line = f"... {self._lost_count} lines of this log were lost: it was not read\n{line}"
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
        # Set in, so that no foreign text passes for a line of the log.
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


class Terminated(KeyboardInterrupt):
    """SIGTERM came where no handler waits for it."""


@contextmanager
def ended_like_an_interrupt() -> Generator[None]:
    """Let a SIGTERM unwind the command, so that what it started and made for itself goes, too."""
    _terms.clear()
    before = signal.signal(signal.SIGTERM, _raise_terminated)
    try:
        yield
        raise_if_terminated()
    except Exception as error:
        # What the signal cut off may complain of it in words of its own.
        if _terms:
            raise Terminated from error
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def unwound_in_silence() -> Generator[None]:
    """Let a signal unwind a command that talks to a JVM: the library between them logs the cut."""
    root = logging.getLogger()
    root.addFilter(_is_no_interrupt)
    try:
        yield
    finally:
        root.removeFilter(_is_no_interrupt)


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    return record.msg != "KeyboardInterrupt while sending command."


def raise_if_terminated() -> None:
    """Raise once more: Python drops what is raised inside a fork, a destructor or a callback."""
    if _terms:
        raise Terminated


def on_signals(stop: Callable[[int], None]) -> None:
    """Let the running loop call `stop` with the number of each signal that asks for the end."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)


def exit_code_of(number: int | None) -> int:
    """What a command answers that this signal ended; None is one that ended by itself."""
    return EXIT_INTERRUPTED if number == signal.SIGINT else 0


def reported_exit_code(number: int | None) -> int:
    """The same, with the line about an interrupt for commands that log nothing."""
    exit_code = exit_code_of(number)
    if exit_code == EXIT_INTERRUPTED:
        talk(interrupts.line())
    return exit_code


def _raise_terminated(number: int, _frame: FrameType | None) -> None:
    _terms.append(number)
    raise Terminated


class HostType(click.ParamType[str]):
    """An address or a name of this machine."""

    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        # Sockets take an empty one for every interface, and a variable is soon left empty.
        if not value.strip():
            self.fail(f"must be an address or a name of this machine, got {value!r}", param, ctx)
        return value


HOST = HostType()


class Endpoint(NamedTuple):
    """An address and a port; `prefix` is how the options that gave them begin."""

    host: str
    port: int
    prefix: str = "--"

    @property
    def shown_host(self) -> str:
        """The host as it stands in a URL."""
        return f"[{self.host}]" if ":" in self.host else self.host

    def of_process(self, number: int) -> Endpoint:
        """Where the process of this number listens: on the next ports, or on any free one."""
        return self._replace(port=self.port + number if self.port else 0)

    async def start(self, server: MetricsServer) -> None:
        """Let a server that was made for this place listen.

        Raises:
            StoreError: the address cannot be listened on.
        """
        try:
            await server.start()
        except (OSError, UnicodeError) as error:
            raise self._refusal(error) from error

    async def check_host(self) -> None:
        """Listen on the host for a moment.

        Raises:
            StoreError: the host is none of this machine's.
        """
        try:
            server = await asyncio.start_server(_hang_up, self.host, 0)
        except (OSError, UnicodeError) as error:
            raise self._refusal(error) from error
        server.close()
        await server.wait_closed()

    def _refusal(self, error: OSError | UnicodeError) -> StoreError:
        why = _reason(error)
        if isinstance(error, OSError) and error.errno in _PORT_ERRORS:
            return StoreError(f"{self.prefix}port {self.port} must be free to listen on: {why}")
        return StoreError(
            f"{self.prefix}host {self.host} must be an address or a name of this machine: {why}; "
            "0.0.0.0 is every interface"
        )


def _reason(error: OSError | UnicodeError) -> str:
    if isinstance(error, UnicodeError):
        return "nothing can have this name"
    # Event loops put the address in, which is said already. Resolvers count below zero.
    number = error.errno or 0
    return os.strerror(number) if number > 0 else error.strerror or str(error)


def _hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()
