"""Notices when the event loop stood still: then old news may look fresh."""

from __future__ import annotations

import time
from collections.abc import Callable

from chasquimq.engine.loop import Ticker

_BEAT_MS = 50
_STILL_NS = 150_000_000


class Pulse:
    """Beats while the event loop runs; may be asked from any thread."""

    name = "pulse"

    def __init__(self, on_beat: Callable[[], None]) -> None:
        self._on_beat = on_beat
        self._beat_ns = time.monotonic_ns()
        self._woke_ns = 0
        self._ticker = Ticker()

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
        while not self._ticker.is_stopped:
            self.run_once()
            await self._ticker.pause(_BEAT_MS)

    def run_once(self) -> None:
        """One beat."""
        now_ns = time.monotonic_ns()
        if self.is_still:
            self._woke_ns = now_ns
        self._beat_ns = now_ns
        self._on_beat()
