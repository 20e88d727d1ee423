"""Keeps the loops of a worker running: each in a task of its own, started again after an error.

A loop runs until it is stopped, one bounded step at a time.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Coroutine
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from chasquimq.errors import ConnectionLost, StoreError
from chasquimq.model.delivery import describe
from chasquimq.model.log import LogThrottle, get_logger

if TYPE_CHECKING:
    from chasquimq.store.consumer.store import ConsumerStore


class Loop(Protocol):
    """Everything the supervisor keeps alive."""

    name: str

    async def run(self) -> None:
        """Go on until stopped; a StoreError may end it, the supervisor starts it again."""
        ...

    def stop(self) -> None:
        """Ask `run` to end soon."""
        ...


class Ticker:
    """A loop's pause that a stop or a nudge cuts short."""

    def __init__(self) -> None:
        self._cut = asyncio.Event()
        self.is_stopped = False

    def stop(self) -> None:
        self.is_stopped = True
        self._cut.set()

    def nudge(self) -> None:
        """End the current pause, or the next one."""
        self._cut.set()

    async def pause(self, ms: float) -> None:
        """Wait that long, or until stopped or nudged."""
        try:
            async with asyncio.timeout(ms / 1000):
                await self._cut.wait()
        except TimeoutError:
            return
        if not self.is_stopped:
            self._cut.clear()


logger = get_logger(__name__)
# A loop is back within two seconds of its cure, which a last long pause must leave time for.
_PAUSE_S_MIN, _PAUSE_S_MAX = 0.05, 1.0
_DOWN_S = 5.0
_UP_S = 1.0


@dataclass(slots=True)
class _LoopFailure:
    """A loop that failed and has not been up since."""

    since_s: float
    error: str = ""
    # Logged already: here, or where the connection is kept.
    is_logged: bool = False
    is_logged_down: bool = False


class Supervisor:
    """Runs each loop until it ends by itself; owns all tasks of a pipeline."""

    def __init__(self, subject: str = "this process") -> None:
        """`subject` is whose loops these are, as the log says it."""
        self.subject = subject
        self.tasks: set[asyncio.Task[None]] = set()
        # None: all of them are started again when other code cancels their tasks.
        self._kept_names: set[str] | None = None
        self._failing: dict[str, _LoopFailure] = {}
        # One for each loop and kind of bug; the kind is empty for what the server answered.
        self._throttles: defaultdict[tuple[str, str], LogThrottle] = defaultdict(LogThrottle)

    @property
    def loops_down(self) -> dict[str, str]:
        """Loops that have been failing for more than five seconds, with their last error."""
        now_s = time.monotonic()
        failing = self._failing.items()
        return {name: one.error for name, one in failing if now_s - one.since_s > _DOWN_S}

    def spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """The one place where tasks are born."""
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def start(self, loop: Loop) -> None:
        """Keep the loop in a task of its own."""
        task = self.spawn(self.keep(loop), f"chasqui-{loop.name}")
        task.add_done_callback(partial(self._start_again, loop))

    def keep_only(self, names: set[str]) -> None:
        """Start no other loops again, for the worker is about to end."""
        self._kept_names = names

    async def ended(self, *names: str) -> None:
        """Wait until the loops of these names have ended."""
        while waiting := self.running(*names):
            await asyncio.wait(waiting)

    def running(self, *names: str) -> list[asyncio.Task[None]]:
        """The tasks of the loops of these names."""
        task_names = {f"chasqui-{name}" for name in names}
        return [task for task in self.tasks if task.get_name() in task_names]

    def _start_again(self, loop: Loop, task: asyncio.Task[None]) -> None:
        """A handler can cancel any task; without this loop its worker would stand still."""
        is_kept = self._kept_names is None or loop.name in self._kept_names
        if is_kept and task.cancelled() and not task.get_loop().is_closed():
            logger.error(
                "loop %s of %s was cancelled by other code and is started again",
                loop.name, self.subject,
            )  # fmt: skip
            self.start(loop)

    async def keep(self, loop: Loop) -> None:
        """Run the loop; after an error wait a little longer each time, then run it again."""
        failures = 0
        while True:
            started_s = time.monotonic()
            try:
                return await self._run(loop)
            except StoreError as error:
                self._note(loop.name, error)
            except BaseException as error:  # a bug in a loop must not stop the worker
                if _is_asked_for(error):
                    raise
                self._note(loop.name, error)
                self._log_bug(loop.name, error)
            failures = 1 if time.monotonic() - started_s > _DOWN_S else failures + 1
            ceiling_s = min(_PAUSE_S_MAX, _PAUSE_S_MIN * 2**failures)
            await asyncio.sleep(random.uniform(_PAUSE_S_MIN / 2, ceiling_s))

    async def _run(self, loop: Loop) -> None:
        # A loop that has run this long without an error is up again.
        recovery = asyncio.get_running_loop().call_later(_UP_S, self._recovered, loop.name)
        try:
            await loop.run()
        finally:
            recovery.cancel()

    def _note(self, name: str, error: BaseException) -> None:
        failure = self._failing.setdefault(name, _LoopFailure(time.monotonic()))
        described = describe(error)
        failure.error = described.message or described.error_type
        # The connection logs once that the server is away; a line for each loop would add nothing.
        failure.is_logged |= isinstance(error, ConnectionLost)
        if name in self.loops_down and not failure.is_logged_down:
            failure.is_logged = failure.is_logged_down = True
            logger.error(
                "loop %s of %s has been failing for %.0f s: %s",
                name, self.subject, time.monotonic() - failure.since_s, failure.error,
                extra=_about(name, failure),
            )  # fmt: skip

    def _log_bug(self, name: str, error: BaseException) -> None:
        self._failing[name].is_logged = True
        if self._throttles[name, describe(error).error_type].allows():
            logger.error(
                "loop %s of %s failed and is started again",
                name, self.subject, exc_info=error, extra={"loop": name},
            )  # fmt: skip

    def _recovered(self, name: str) -> None:
        failure = self._failing.pop(name, None)
        if failure is None:
            return
        if failure.is_logged_down:
            logger.info(
                "loop %s of %s is up again", name, self.subject, extra=_about(name, failure)
            )
        elif not failure.is_logged and self._throttles[name, ""].allows():
            logger.warning(
                "loop %s of %s had failed and is up again: %s", name, self.subject, failure.error,
                extra=_about(name, failure),
            )  # fmt: skip


def _is_asked_for(error: BaseException) -> bool:
    """Whether the end is wanted: by code that cancelled our task, or by the interpreter.

    Any other cancel comes from something that was waited for, and is a bug.
    """
    if not isinstance(error, asyncio.CancelledError):
        return isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit)
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _about(name: str, failure: _LoopFailure) -> dict[str, str]:
    return {"loop": name, "error": failure.error}


_PAUSE_MS = 60_000


class ClockSync:
    """Asks the server for its time once a minute."""

    name = "clock-sync"

    def __init__(self, store: ConsumerStore) -> None:
        self._store = store
        self._ticker = Ticker()

    def stop(self) -> None:
        self._ticker.stop()

    async def run(self) -> None:
        while not self._ticker.is_stopped:
            await self._ticker.pause(_PAUSE_MS)
            if not self._ticker.is_stopped:
                await self.run_once()

    async def run_once(self) -> None:
        await self._store.learn_time()
