"""Notices when the event loop stood still: then old news may look fresh, and somebody is told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from chasquimq.engine.loop import Ticker
from chasquimq.model.log import get_logger
from chasquimq.model.pace import Pace

if TYPE_CHECKING:
    from chasquimq.model.delivery import Delivery

logger = get_logger(__name__)
_BEAT_MS = 50
_STILL_NS = 150_000_000
_BLOCKED_NS = 1_000_000_000
_ADVICE = (
    "make a handler that computes or waits without await a plain def, which runs in a thread, "
    "or use a process pool"
)
_OTHER_ADVICE = "look at hooks and other code of this process, and whether the machine was busy"


class Pulse:
    """Beats while the event loop runs; may be asked from any thread."""

    name = "pulse"

    def __init__(
        self, on_beat: Callable[[], None], ran_through: Callable[[int], list[Delivery]]
    ) -> None:
        """`ran_through` names the jobs that may have blocked the loop from a moment until now."""
        self._on_beat = on_beat
        self._ran_through = ran_through
        self._beat_ns = time.monotonic_ns()
        self._woke_ns = 0
        self._ticker = Ticker()
        self._pace = Pace()

    @property
    def is_still(self) -> bool:
        """Whether the event loop does nothing right now."""
        return time.monotonic_ns() - self._beat_ns > _STILL_NS

    def has_slept_since(self, ns: int) -> bool:
        """Whether what was asked then may have been answered long before we saw it."""
        return self.is_still or self._woke_ns > ns

    def stop(self) -> None:
        self._ticker.stop()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._ticker.is_stopped:
            self.run_once()
            # A plain timer comes first after a block: the job is still held then.
            timer = loop.call_later(_BEAT_MS / 1000, self._check_block, self._beat_ns)
            try:
                await self._ticker.pause(_BEAT_MS)
            finally:
                timer.cancel()

    def run_once(self) -> None:
        """One beat."""
        now_ns = time.monotonic_ns()
        if self.is_still:
            self._woke_ns = now_ns
        self._beat_ns = now_ns
        self._on_beat()

    def _check_block(self, beat_ns: int) -> None:
        blocked_ns = time.monotonic_ns() - beat_ns
        if blocked_ns < _BLOCKED_NS or not self._pace.allows():
            return
        jobs = self._ran_through(beat_ns)
        logger.warning(
            "the event loop was blocked for %.1f s while %s ran; %s%s",
            blocked_ns / 1e9, _named(jobs), _ADVICE if jobs else _OTHER_ADVICE,
            self._pace.held_back_text(),
        )  # fmt: skip


def _named(jobs: list[Delivery]) -> str:
    if not jobs:
        return "no job"
    first = f"job {jobs[0].job_id} ({jobs[0].name or 'no name'})"
    return first if len(jobs) == 1 else f"{len(jobs)} jobs, among them {first},"
