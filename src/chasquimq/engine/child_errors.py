"""What a job run in another process can come back as, besides a result."""

from __future__ import annotations

import signal
from contextlib import suppress

from chasquimq.engine.child_frames import HandlerError
from chasquimq.engine.tracebacks import Trace, traceback_text
from chasquimq.errors import DecodeError, RetryLater, SettingsError, UnrecoverableError


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
