"""Kills, pauses or fails a worker at a named point of its path, to try what its jobs come to.

    python -m chasquimq.testing.failpoints after_ack_sent:3:exit worker.py
    python -m chasquimq.testing.failpoints before_read_sent:1:sleep:0.5 -m chasquimq worker app:handle

The first ends the process when its third ack has been sent; `raise` loses the connection instead.
It wraps the methods of the engine and the stores from outside: a worker that was started in any
other way holds no line of it.
"""

from __future__ import annotations

import os
import runpy
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import wraps
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from chasquimq.engine.settlement import SettleLoop
from chasquimq.errors import ConnectionLost, SettingsError
from chasquimq.store.consumer.lease import LeaseStore
from chasquimq.store.consumer.store import ConsumerStore
from chasquimq.store.history import HistoryStore
from chasquimq.store.net.blocking import BlockingConnection
from chasquimq.store.net.connection import Connection
from chasquimq.store.repeatables import FiringStore
from chasquimq.store.upkeep import UpkeepStore

# What a killed process leaves as its code, too.
EXIT_CODE = 137
EXIT_USAGE = 2
USAGE = "python -m chasquimq.testing.failpoints POINT:PASSING:ACTION PROGRAM.py|-m MODULE"
_SLEEP_S = 1.0
# Each act has three points: before it is sent, after it was sent, after the reply.
ACTS: dict[str, tuple[type, str]] = {
    "read": (ConsumerStore, "read"),
    "claim": (ConsumerStore, "claim"),
    "charge": (ConsumerStore, "charge"),
    "ack": (ConsumerStore, "ack"),
    "complete": (ConsumerStore, "complete"),
    "retry": (ConsumerStore, "retry"),
    "bury": (ConsumerStore, "bury"),
    "hand_back": (ConsumerStore, "requeue"),
    "renew": (LeaseStore, "renew"),
    "lock": (UpkeepStore, "lead"),
    "promote": (UpkeepStore, "promote"),
    "fire": (FiringStore, "fire"),
    "history": (HistoryStore, "_write"),
}
HANDLER_END = "after_handler_end"
POINTS = (
    HANDLER_END,
    *(
        point
        for act in ACTS
        for point in (f"before_{act}_sent", f"after_{act}_sent", f"after_{act}_reply")
    ),
)
_act: ContextVar[str] = ContextVar("chasquimq_failpoint_act", default="")


class Failpoint(msgspec.Struct, frozen=True):
    """Where, at which passing, and what happens then."""

    name: str
    passing: int
    action: str
    sleep_s: float = _SLEEP_S

    @classmethod
    def read(cls, text: str) -> Failpoint:
        """Read `name:passing:action`, with seconds behind `sleep` if wanted."""
        name, passing, action, sleep_s = [*text.split(":"), "", "", "", ""][:4]
        is_known = name in POINTS and action in ("exit", "sleep", "raise")
        if not is_known or not passing.isdecimal() or (name == HANDLER_END and action == "raise"):
            raise SettingsError(
                "failpoint", text, "point:passing:exit, point:passing:sleep:seconds or "
                "point:passing:raise", hint=f"the points are {', '.join(POINTS)}",
            )  # fmt: skip
        return cls(name, int(passing), action, float(sleep_s or _SLEEP_S))


class _Trap:
    """Counts passings, and acts on the one that was asked for."""

    def __init__(self, failpoint: Failpoint) -> None:
        self._failpoint = failpoint
        self._passings: Counter[str] = Counter()
        # Leases are renewed by a thread of their own.
        self._lock = threading.Lock()

    def trip(self, name: str) -> None:
        with self._lock:
            self._passings[name] += 1
            is_it = (name, self._passings[name]) == (self._failpoint.name, self._failpoint.passing)
        if not is_it:
            return
        if self._failpoint.action == "exit":
            os._exit(EXIT_CODE)
        if self._failpoint.action == "sleep":
            time.sleep(self._failpoint.sleep_s)
            return
        self._fail()

    def _fail(self) -> NoReturn:
        raise ConnectionLost(f"the failpoint {self._failpoint.name} loses the connection")


def install(text: str) -> None:
    """Set the trap for this whole process; a second time changes nothing.

    Raises:
        SettingsError: the text names no point, no passing or no action.
    """
    trap = _Trap(Failpoint.read(text))
    if hasattr(Connection.send, "__wrapped__"):
        return
    for act, (owner, method) in ACTS.items():
        setattr(owner, method, _around(act, getattr(owner, method), trap))
    # Both hand bytes to the socket at once, so that from here on the server may have them.
    for owner, method in ((Connection, "send"), (BlockingConnection, "_receive")):
        setattr(owner, method, _sending(getattr(owner, method), trap, owner is Connection))
    for method in ("put",):
        setattr(SettleLoop, method, _ending(getattr(SettleLoop, method), trap))


def _around(act: str, real: Callable[..., Any], trap: _Trap) -> Callable[..., Any]:
    if not iscoroutinefunction(real):
        return _around_sync(act, real, trap)

    @wraps(real)
    async def passing(*args: Any, **options: Any) -> Any:
        token = _act.set(act)
        try:
            trap.trip(f"before_{act}_sent")
            value = await real(*args, **options)
            trap.trip(f"after_{act}_reply")
            return value
        finally:
            _act.reset(token)

    return passing


def _around_sync(act: str, real: Callable[..., Any], trap: _Trap) -> Callable[..., Any]:
    @wraps(real)
    def passing(*args: Any, **options: Any) -> Any:
        token = _act.set(act)
        try:
            trap.trip(f"before_{act}_sent")
            value = real(*args, **options)
            trap.trip(f"after_{act}_reply")
            return value
        finally:
            _act.reset(token)

    return passing


def _sending(real: Callable[..., Any], trap: _Trap, is_sender: bool) -> Callable[..., Any]:
    """Trip between the request and its reply: behind what sends, or before what receives."""

    @wraps(real)
    def passing(*args: Any, **options: Any) -> Any:
        act = _act.get()
        if act and not is_sender:
            trap.trip(f"after_{act}_sent")
        value = real(*args, **options)
        if act and is_sender:
            trap.trip(f"after_{act}_sent")
        return value

    return passing


def _ending(real: Callable[..., Any], trap: _Trap) -> Callable[..., Any]:
    @wraps(real)
    def passing(*args: Any, **options: Any) -> Any:
        trap.trip(HANDLER_END)
        return real(*args, **options)

    return passing


# ── as a program ─────────────────────────────────────────────────────────────────────────────


def main(words: Sequence[str]) -> int:
    """Set a trap, then run a program in this process as Python itself would."""
    program = list(words[1:])
    try:
        install("".join(words[:1]))
        _demand(program)
    except SettingsError as refused:
        sys.stderr.write(f"error: {refused}\nusage: {USAGE}\n")
        return EXIT_USAGE
    _run(program)
    return 0


def _demand(program: list[str]) -> None:
    if program in ([], ["-m"]):
        raise SettingsError("program", " ".join(program), "a program behind the failpoint")


def _run(program: list[str]) -> None:
    if program[0] == "-m":
        sys.argv = program[1:]
        runpy.run_module(program[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = program
    sys.path.insert(0, str(Path(program[0]).resolve().parent))
    runpy.run_path(program[0], run_name="__main__")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
