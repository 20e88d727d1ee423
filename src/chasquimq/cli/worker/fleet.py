"""Keeps worker processes running: starts another when one dies, and ends when all have ended."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress

from chasquimq.cli.interrupts import EXIT_INTERRUPTED
from chasquimq.cli.signals import exit_code_of, hear_signals
from chasquimq.errors import EXIT_FAILED, EXIT_USAGE
from chasquimq.model.log import get_logger
from chasquimq.model.retry import doubled_ms
from chasquimq.model.stop_signals import ECHO_S, StopSignals

# How a child says that another consumer group has the queue; the answer of the fleet is 1.
EXIT_GROUP_CONFLICT = 3
RESTART_MS_MIN = 200
RESTART_MS_MAX = 30_000
# A child that lived this long died of something new.
SETTLED_S = 60.0

logger = get_logger(__name__)


def restart_ms(deaths: int) -> float:
    """How long to wait after that many deaths in a row, before jitter."""
    return doubled_ms(deaths, RESTART_MS_MIN, RESTART_MS_MAX)


class WorkerFleet:
    """So many processes; `command` makes the command line of each from its number and a pipe.

    The pipe is a file descriptor whose end a child sees when this process is gone, whatever
    ended it.
    """

    def __init__(
        self, size: int, command: Callable[[int, int], Sequence[str]], environ: dict[str, str]
    ) -> None:
        self._size = size
        self._command = command
        self._environ = environ
        self._children: dict[int, asyncio.subprocess.Process] = {}
        self._stopping = asyncio.Event()
        self._signals = StopSignals()
        self._exit_code = 0
        self._lifeline, self._held = os.pipe()

    async def run(self) -> int:
        """Run until every child has ended after a signal; the answer is the exit code."""
        hear_signals(self._hear)
        async with asyncio.TaskGroup() as keeping:
            for number in range(self._size):
                keeping.create_task(self._keep(number), name=f"chasqui-child-{number}")
        if self._exit_code:
            return self._exit_code
        return exit_code_of(self._signals.number)

    async def _keep(self, number: int) -> None:
        loop, deaths = asyncio.get_running_loop(), 0
        while not self._stopping.is_set():
            started_s = loop.time()
            exit_code = await self._live(number)
            if self._stopping.is_set():
                self._note_end(exit_code)
                return
            if exit_code in (EXIT_USAGE, EXIT_GROUP_CONFLICT):
                self._give_up(EXIT_USAGE if exit_code == EXIT_USAGE else EXIT_FAILED)
                return
            deaths = 1 if loop.time() - started_s > SETTLED_S else deaths + 1
            await self._pause(number, exit_code, restart_ms(deaths) * random.uniform(0.5, 1))

    async def _live(self, number: int) -> int:
        """Start a child and wait for its end; the answer is its exit code."""
        try:
            child = await self._start(number)
        except OSError as error:
            # No memory, or no process more: that passes, and the other children go on.
            logger.warning(
                "worker process %d could not be started: %s", number, error,
                extra={"number": number},
            )  # fmt: skip
            return EXIT_FAILED
        self._children[number] = child
        if self._stopping.is_set():
            _end(child)
        logger.info(
            "worker process %d started (pid %d)", number, child.pid,
            extra={"number": number, "pid": child.pid},
        )  # fmt: skip
        exit_code = await child.wait()
        del self._children[number]
        return exit_code

    async def _start(self, number: int) -> asyncio.subprocess.Process:
        command = self._command(number, self._lifeline)
        # A group of its own: Ctrl+C reaches this process, which passes it on exactly once.
        return await asyncio.create_subprocess_exec(
            *command, env=self._environ, pass_fds=[self._lifeline], process_group=0,
            stdin=asyncio.subprocess.DEVNULL,
        )  # fmt: skip

    async def _pause(self, number: int, exit_code: int, pause_ms: float) -> None:
        logger.warning(
            "worker process %d died with exit code %d, starting another in %.1f s",
            number, exit_code, pause_ms / 1000,
            extra={"number": number, "exit_code": exit_code, "in_ms": int(pause_ms)},
        )  # fmt: skip
        try:
            async with asyncio.timeout(pause_ms / 1000):
                await self._stopping.wait()
        except TimeoutError:
            return

    def _hear(self, number: int) -> None:
        # Echoes, too: each child tells them from a second signal by itself.
        self._forward()
        if self._signals.note(number) == "at_once":
            # A child that heard the first one late takes this one for its echo.
            asyncio.get_running_loop().call_later(ECHO_S, self._forward)

    def _forward(self) -> None:
        self._stopping.set()
        for child in self._children.values():
            _end(child)

    def _give_up(self, exit_code: int) -> None:
        # It said why, and would say so again for ever.
        self._exit_code = exit_code
        self._forward()

    def _note_end(self, exit_code: int) -> None:
        # A child that was still starting knows no signals yet, and held nothing.
        well = (0, EXIT_INTERRUPTED, EXIT_GROUP_CONFLICT, -signal.SIGTERM, -signal.SIGINT)
        if exit_code not in well:
            logger.error(
                "a worker process did not end well: exit code %d", exit_code,
                extra={"exit_code": exit_code},
            )  # fmt: skip
            self._exit_code = self._exit_code or EXIT_FAILED


def _end(child: asyncio.subprocess.Process) -> None:
    """Pass a signal on; a child that has just ended must not keep it from the next one.

    Always SIGTERM: an interpreter that is still starting ends at an interrupt with a traceback and
    code 1, as if it had failed. Not by the child's own method: that one reaps who is dead, and the
    exit code is lost.
    """
    if child.returncode is None:
        with suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGTERM)
