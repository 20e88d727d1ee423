"""Runs handlers in a child process: finds them by their address, answers calls, reports meanwhile."""

from __future__ import annotations

import asyncio
import contextvars
import importlib
import importlib.util
import inspect
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import reduce
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import msgspec

from chasquimq.engine.process_pool.frames import (
    CallResult,
    HandlerAddress,
    HandlerCall,
    HandlerError,
    Hello,
    JobValues,
    LeaseLost,
    Report,
    decode_from_parent,
    decode_hello,
    encode_frame,
    read_frame,
)
from chasquimq.engine.tracebacks import Trace, trace_of
from chasquimq.errors import DecodeError, RetryLater, SettingsError, UnrecoverableError
from chasquimq.model.delivery import Delivery
from chasquimq.store.consumer import decode as payloads

ANY_NAME = ""
SCRIPT_MODULE = "__chasqui_script__"

Handler: TypeAlias = Callable[[Any], Any]

# The second is what multiprocessing calls the script in its own children.
_MAIN_MODULES = ("__main__", "__mp_main__")
_REMEDY = 'define it with `def` at the top level of a module, or use pool="thread"'


def addresses_of(handlers: Mapping[str, Handler] | Handler) -> dict[str, HandlerAddress]:
    """The address of each handler by job name; a lone handler answers to any name."""
    if callable(handlers):
        return {ANY_NAME: address_of(handlers, "handler")}
    return {name: address_of(one, f"handlers[{name!r}]") for name, one in handlers.items()}


def address_of(handler: Handler, setting: str) -> HandlerAddress:
    """The address of a handler; SettingsError when a fresh interpreter could not reach it."""
    module_name = getattr(handler, "__module__", None)
    qualname = getattr(handler, "__qualname__", None)
    if not isinstance(module_name, str) or not isinstance(qualname, str):
        raise _refusal(setting, repr(handler))
    module = sys.modules.get(module_name)
    if module is None or not _is_or_wraps(_find(module, qualname), handler):
        raise _refusal(setting, f"{module_name}:{qualname}")
    if module_name in _MAIN_MODULES:
        return _address_in_main(module, qualname, setting)
    if getattr(module, "__spec__", None) is None:
        raise _refusal(setting, f"{module_name}:{qualname}")
    return HandlerAddress(module_name, qualname)


def load(address: HandlerAddress) -> Handler:
    """Import the module of an address and return its handler."""
    module = _load_script(address.path) if address.path else _import(address.module)
    return reduce(getattr, address.qualname.split("."), module)


def _refusal(setting: str, found: str) -> SettingsError:
    return SettingsError(setting, found, "a function that can be imported by name", hint=_REMEDY)


def _is_or_wraps(found: object, handler: Handler) -> bool:
    """Whether calling what was found runs this handler: a wrapper may have taken its name."""
    return found == handler or getattr(found, "__wrapped__", None) is handler


def _find(module: ModuleType, qualname: str) -> object:
    try:
        return reduce(getattr, qualname.split("."), module)
    except AttributeError:
        return None


def _address_in_main(main: ModuleType, qualname: str, setting: str) -> HandlerAddress:
    spec = getattr(main, "__spec__", None)
    # `python -m package.module` knows its real name; a script has only its path.
    if spec is not None and spec.name not in _MAIN_MODULES:
        return HandlerAddress(spec.name, qualname)
    path = getattr(main, "__file__", None)
    if path is None or not Path(path).is_file():
        raise _refusal(setting, f"__main__:{qualname}")
    return HandlerAddress("__main__", qualname, str(Path(path).absolute()))


def _import(module_name: str) -> Any:
    return importlib.import_module(module_name)


def _load_script(path: str) -> Any:
    if SCRIPT_MODULE in sys.modules:
        return sys.modules[SCRIPT_MODULE]
    # A script need not end in `.py`, so the loader is named instead of guessed.
    loader = SourceFileLoader(SCRIPT_MODULE, path)
    spec = importlib.util.spec_from_file_location(SCRIPT_MODULE, path, loader=loader)
    assert spec is not None, "a spec with a named loader is always made"
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and type hints look their module up while it is still being executed.
    sys.modules[SCRIPT_MODULE] = module
    loader.exec_module(module)
    return module


ORPHAN_EXIT_CODE = 3
TEXT_BYTES_MAX = 16 * 1024
RETRY_LATER_MS_MAX = 2**53
PR_SET_PDEATHSIG = 1

Handlers: TypeAlias = dict[str, Handler]


def main() -> None:
    """Serve calls until the parent says stop, or is gone."""
    take_signals()
    die_with_parent()
    sock = socket.socket(fileno=int(sys.argv[1]))
    sock.set_inheritable(False)
    threading.Thread(target=watch, args=(sock,), name="chasqui-parent", daemon=True).start()
    handlers = settle_in(sock, decode_hello(next_frame(sock)))
    with asyncio.Runner() as runner:
        serve(sock, handlers, runner, ChildContext(sock))


def take_signals() -> None:
    """Leave Ctrl-C to the parent, and let SIGTERM end the process whatever was inherited."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def die_with_parent() -> None:
    """Ask Linux for SIGKILL at the parent's death: a handler may hold the GIL for ever."""
    if sys.platform != "linux":
        return
    import ctypes

    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def watch(sock: socket.socket) -> None:
    """Wait for the parent to hang up, then leave at once, even from amid a handler."""
    hang_up = select.poll()
    # No event is asked for, so the poll takes no part in reading: a hang-up is always reported.
    hang_up.register(sock, 0)
    hang_up.poll()
    os._exit(ORPHAN_EXIT_CODE)


def next_frame(sock: socket.socket) -> bytes:
    """Wait for the parent's next words; without a parent there is nothing left to do."""
    frame = read_frame(sock)
    if frame is None:
        os._exit(ORPHAN_EXIT_CODE)
    return frame


def settle_in(sock: socket.socket, hello: Hello) -> Handlers:
    """Import what the parent imports, and report that this worked or why it did not."""
    sys.path[:] = hello.sys_path
    sys.argv[:] = hello.argv
    restore_python_path(hello.python_path)
    try:
        handlers = {name: load(address) for name, address in hello.handlers.items()}
    except BaseException as error:  # noqa: BLE001 - an import runs the user's code
        sock.sendall(encode_frame(CallResult(error=describe(error))))
        sys.exit(1)
    sock.sendall(encode_frame(CallResult()))
    return handlers


def restore_python_path(python_path: str | None) -> None:
    """Undo the parent's help for our own start, so that programs run by handlers do not see it."""
    if python_path is None:
        os.environ.pop("PYTHONPATH", None)
        return
    os.environ["PYTHONPATH"] = python_path


class ChildContext:
    """Asks the worker and reports to it over the socket, while a call is under way.

    What the worker sends is read when a handler asks: during a call nothing else comes.
    """

    def __init__(self, sock: socket.socket) -> None:
        # What handlers keep in `job.state` is shared by the calls of one child, and by no other.
        self.state: dict[str, Any] = {}
        self.decode: Callable[[bytes], Any] = payloads.decode
        self._sock = sock
        self._owner_pid = os.getpid()
        self._running: Delivery | None = None
        self._lock = threading.Lock()
        self._news = select.poll()
        self._news.register(sock, select.POLLIN)

    def begin(self, delivery: Delivery) -> None:
        """A call has come; what is asked about its job goes to the worker."""
        self._running = delivery

    def end(self) -> None:
        """The handler has ended; its threads may live on, and their reports are dropped."""
        with self._lock:
            self._running = None

    def is_lease_lost(self, delivery: Delivery) -> bool:
        if self._is_parent:
            with self._lock:
                while delivery is self._running and self._news.poll(0):
                    delivery.is_lease_lost |= isinstance(next_words(self._sock), LeaseLost)
        return delivery.is_lease_lost

    def report(self, delivery: Delivery, topic: str, value: Any) -> None:
        frame = encode_frame(Report(topic, payloads.encode(value)))
        if self._is_parent:
            with self._lock:
                if delivery is self._running:
                    self._sock.sendall(frame)

    @property
    def _is_parent(self) -> bool:
        """Whether this is the child itself, and no copy that a handler forked."""
        return os.getpid() == self._owner_pid


def next_words(sock: socket.socket) -> HandlerCall | LeaseLost | None:
    """What the parent says next; None means stop."""
    frame = next_frame(sock)
    return decode_from_parent(frame) if frame else None


def serve(
    sock: socket.socket, handlers: Handlers, runner: asyncio.Runner, context: ChildContext
) -> None:
    """Answer calls one by one until the parent says stop."""
    owner_pid = os.getpid()
    while (words := next_words(sock)) is not None:
        if isinstance(words, LeaseLost):
            continue  # it came when the call had ended
        answer = execute(handlers[words.handler], words, runner, context)
        # A handler that forked must not let the copy answer in our name.
        if os.getpid() != owner_pid:
            os._exit(0)
        context.end()
        flush_prints()
        sock.sendall(frame_of(answer))


def execute(
    handler: Handler, call: HandlerCall, runner: asyncio.Runner, context: ChildContext
) -> CallResult:
    """Run the handler in a context of its own and turn what happened into an answer."""
    variables = contextvars.copy_context()
    try:
        result = variables.run(begin, handler, call.values, context)
        if inspect.iscoroutine(result):
            result = runner.run(result, context=variables)
        return CallResult(payloads.encode_result(result))
    # SystemExit, CancelledError and the like are failures of this job alone.
    except BaseException as error:  # noqa: BLE001 - the user's code
        return CallResult(error=describe(error))


def begin(handler: Handler, values: JobValues, context: ChildContext) -> Any:
    # The nouns are above this room; only this program, which is a worker in small, meets them.
    from chasquimq.job import DeliveredJob, enter_job

    delivery = delivery_from_values(values)
    context.begin(delivery)
    job = DeliveredJob(delivery, context)
    enter_job(job)
    return handler(job)


def delivery_from_values(values: JobValues) -> Delivery:
    """As much of a delivery as its handler sees."""
    job_id, name, payload, _attempt, created_at_ms, run_number, was_redelivered = values
    earlier = int(was_redelivered)
    return Delivery(
        entry_id=b"",
        job_id=job_id,
        name=name,
        payload=payload,
        created_at_ms=created_at_ms,
        spent=run_number - 1 - earlier,
        earlier=earlier,
        retry=None,
        extras=None,
        due_ms=None,
        envelope=b"",
    )


def describe(error: BaseException) -> HandlerError:
    """The parts of an exception that can cross the border."""
    return HandlerError(
        type_name=type(error).__name__,
        message=head_of(text_of(error)),
        trace=short_words(trace_of(error)),
        is_unrecoverable=isinstance(error, UnrecoverableError),
        retry_later_ms=retry_later_ms_of(error),
        is_undecodable=isinstance(error, DecodeError),
    )


def text_of(error: BaseException) -> str:
    """The exception's own words, or a word about it when even those raise."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - `__str__` is the user's code too
        return "<the exception has no printable text>"


def head_of(text: str) -> str:
    return text.encode("utf-8", "replace")[:TEXT_BYTES_MAX].decode("utf-8", "ignore")


def short_words(trace: Trace) -> Trace:
    """The same trace with texts that a frame can carry."""
    return [
        msgspec.structs.replace(part, text=head_of(part.text), more=head_of(part.more))
        for part in trace
    ]


def retry_later_ms_of(error: BaseException) -> int | None:
    """The delay a handler asked for; None when it asked for none, or for one that is no number."""
    if not isinstance(error, RetryLater):
        return None
    with suppress(TypeError, ValueError, OverflowError):
        return max(0, min(int(error.delay_ms), RETRY_LATER_MS_MAX))
    return None


def flush_prints() -> None:
    """Let prints out now: a child that is killed later would take them along."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()


def frame_of(answer: CallResult) -> bytes:
    """The frame of an answer; a result too long for one becomes an error."""
    try:
        return encode_frame(answer)
    except ValueError as error:
        return encode_frame(CallResult(error=describe(error)))


if __name__ == "__main__":
    main()
