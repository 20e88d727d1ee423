"""When a worker has to be gone: asked once it drains, asked twice it gives back what runs."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from chasquimq.model.stop_signals import StopSignals

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopping:
    """The wish to stop, and the moment at which it must be fulfilled."""

    def __init__(self, deadline_ms: int) -> None:
        self._deadline_ms = deadline_ms
        self._deadline_s: float | None = None
        self._asked = asyncio.Event()

    def set_deadline(self, deadline_ms: int) -> None:
        """How long running jobs may go on; for those who have not been asked yet."""
        self._deadline_ms = deadline_ms

    @property
    def is_asked(self) -> bool:
        return self._asked.is_set()

    def ask(self) -> None:
        """The first time sets the deadline, the second time it is now."""
        patience_ms = 0 if self.is_asked else self._deadline_ms
        self._deadline_s = time.monotonic() + patience_ms / 1000
        self._asked.set()

    async def wait(self) -> None:
        await self._asked.wait()

    def deadline(self) -> Callable[[], float]:
        """A deadline that may move closer; who stops without being asked has no time left."""
        now_s = time.monotonic()
        return lambda: now_s if self._deadline_s is None else self._deadline_s


@contextmanager
def signals_heard(stop: Callable[[], None]) -> Generator[None]:
    """Let the running loop call `stop` for each signal that asks for the end, but for echoes."""
    loop, signals = asyncio.get_running_loop(), StopSignals()

    def hear() -> None:
        if signals.note():
            stop()

    for number in _SIGNALS:
        loop.add_signal_handler(number, hear)
    try:
        yield
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
