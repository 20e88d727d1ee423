"""The words a process pool and its children exchange: a u32 length, then one MessagePack value."""

from __future__ import annotations

import signal
import socket
import struct
from contextlib import suppress
from typing import TypeAlias

import msgspec

from chasquimq.engine.tracebacks import Trace, traceback_text
from chasquimq.errors import DecodeError, RetryLater, SettingsError, UnrecoverableError

FRAME_BYTES_MAX = 64 * 1024 * 1024
LENGTH = struct.Struct(">I")
STOP_FRAME = LENGTH.pack(0)

# job id, name, payload, attempt, created_at_ms, run number, was delivered before
JobValues: TypeAlias = tuple[str, str, bytes, int, int, int, bool]


class HandlerAddress(msgspec.Struct, frozen=True, array_like=True):
    """Where a fresh interpreter finds a handler; `path` is set for functions of a script."""

    module: str
    qualname: str
    path: str | None = None

    def __str__(self) -> str:
        return f"{self.path or self.module}:{self.qualname}"


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """The first frame to a child: how to become a twin of its parent."""

    handlers: dict[str, HandlerAddress]
    sys_path: list[str]
    argv: list[str]
    python_path: str | None


class HandlerCall(msgspec.Struct, frozen=True, array_like=True, tag="call"):
    """A later frame to a child: which handler, which job."""

    handler: str
    values: JobValues


class HandlerError(msgspec.Struct, frozen=True, array_like=True):
    """What is left of an exception after it crossed the process border."""

    type_name: str
    message: str
    trace: Trace
    is_unrecoverable: bool = False
    retry_later_ms: int | None = None
    is_undecodable: bool = False


class LeaseLost(msgspec.Struct, frozen=True, array_like=True, tag="lease_lost"):
    """The other frame to a child, during a call: another worker may run this job now."""


class Report(msgspec.Struct, frozen=True, array_like=True, tag="report"):
    """A frame from a child during a call: what its handler reports to the worker."""

    topic: str
    value: bytes


class CallResult(msgspec.Struct, frozen=True, array_like=True, tag="result"):
    """A frame from a child: the encoded result, or the error; the first says it is ready."""

    result: bytes = b"\xc0"
    error: HandlerError | None = None


def encode_frame(words: Hello | HandlerCall | LeaseLost | Report | CallResult) -> bytes:
    """The frame of these words; ValueError when they are longer than a frame may be."""
    body = _encoder.encode(words)
    if len(body) > FRAME_BYTES_MAX:
        raise ValueError(f"a frame must be at most {FRAME_BYTES_MAX} bytes, got {len(body)}")
    return LENGTH.pack(len(body)) + body


def take_frame(buffer: bytearray) -> bytes | None:
    """Cut the first whole frame body off the buffer; None when more bytes are needed."""
    if len(buffer) < LENGTH.size:
        return None
    end = LENGTH.size + LENGTH.unpack_from(buffer)[0]
    if end > LENGTH.size + FRAME_BYTES_MAX:
        raise ValueError(f"a frame must be at most {FRAME_BYTES_MAX} bytes, got {end}")
    if len(buffer) < end:
        return None
    body = bytes(buffer[LENGTH.size : end])
    del buffer[:end]
    return body


def read_frame(sock: socket.socket) -> bytes | None:
    """Block until a whole frame is here and return its body; None when the other end is gone."""
    head = _read_exactly(sock, LENGTH.size)
    return None if head is None else _read_exactly(sock, LENGTH.unpack(head)[0])


def _read_exactly(sock: socket.socket, size_bytes: int) -> bytes | None:
    body = bytearray(size_bytes)
    rest = memoryview(body)
    while rest:
        try:
            read_bytes = sock.recv_into(rest)
        except OSError:
            return None
        if not read_bytes:
            return None
        rest = rest[read_bytes:]
    return bytes(body)


_encoder = msgspec.msgpack.Encoder()
decode_hello = msgspec.msgpack.Decoder(Hello).decode
decode_from_parent = msgspec.msgpack.Decoder(HandlerCall | LeaseLost).decode
decode_from_child = msgspec.msgpack.Decoder(CallResult | Report).decode


class RemoteError(Exception):
    """A handler raised in its own process; `type_name`, `message` and `traceback_text` say what.

    `trace` is where it came from, not yet put into words.
    """

    def __init__(self, type_name: str, message: str, trace: Trace) -> None:
        self.type_name = type_name
        self.message = message
        self.trace = trace
        self.traceback_text = traceback_text(trace)
        super().__init__(f"{type_name}: {message}" if message else type_name)
        if self.traceback_text:
            self.add_note(self.traceback_text)


class ChildDied(Exception):
    """The process that ran this job is gone; a negative `exit_code` is the signal that ended it."""

    def __init__(self, exit_code: int) -> None:
        self.exit_code = exit_code
        super().__init__(f"a handler's process must live until it answers, {_end(exit_code)}")


def exception_of(error: HandlerError) -> Exception:
    """The exception to raise in the parent; the remote one is its cause when it is another."""
    remote = RemoteError(error.type_name, error.message, error.trace)
    if error.retry_later_ms is not None:
        return _caused(RetryLater(error.retry_later_ms, error.message), remote)
    if error.is_unrecoverable:
        return _caused(UnrecoverableError(error.message), remote)
    if error.is_undecodable:
        return _caused(DecodeError(error.message), remote)
    return remote


def import_refusal(error: HandlerError) -> SettingsError:
    """What a pool says when its children cannot import a handler."""
    cause = exception_of(error)
    refusal = SettingsError("handlers", str(cause), "importable in a fresh interpreter")
    refusal.__cause__ = cause
    return refusal


def _caused(exception: Exception, cause: Exception) -> Exception:
    exception.__cause__ = cause
    return exception


def _end(exit_code: int) -> str:
    if exit_code >= 0:
        return f"but this one exited with code {exit_code}; look for os._exit in the handler"
    name = f"signal {-exit_code}"
    with suppress(ValueError):
        name = signal.Signals(-exit_code).name
    return f"but {name} ended this one; look for native crashes, and for the memory it used"
