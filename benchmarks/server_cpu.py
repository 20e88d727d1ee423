"""How busy the server's main thread was during a stretch that another process measured."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from pathlib import Path
from types import TracebackType
from typing import Self

_SAMPLE_S = 0.02


class ServerCpu:
    """Looks at the server's processor time all the while; a server elsewhere is not seen."""

    def __init__(self, pid: int | None) -> None:
        self._books = Path(f"/proc/{pid}/schedstat") if pid else None
        self._times_s: list[float] = []
        self._cpu_s: list[float] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._look, name="server-cpu", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopped.set()
        self._thread.join()

    def share(self, began_s: float, seconds: float) -> float | None:
        """Processor time over time, or None where too little was seen."""
        if len(self._times_s) < 2 or began_s < self._times_s[0]:
            return None
        used_s = self._cpu_at(began_s + seconds) - self._cpu_at(began_s)
        return used_s / seconds

    def _look(self) -> None:
        while self._sample() and not self._stopped.wait(_SAMPLE_S):
            pass
        self._sample()

    def _sample(self) -> bool:
        if self._books is None:
            return False
        try:
            cpu_ns = int(self._books.read_text("ascii").split()[0])
        except (OSError, ValueError, IndexError):
            return False
        self._times_s.append(time.perf_counter())
        self._cpu_s.append(cpu_ns / 1e9)
        return True

    def _cpu_at(self, at_s: float) -> float:
        """Between two looks the server counts as equally busy."""
        after = min(bisect_left(self._times_s, at_s), len(self._times_s) - 1)
        before = max(0, after - 1)
        span_s = self._times_s[after] - self._times_s[before]
        part = (at_s - self._times_s[before]) / span_s if span_s else 0.0
        used_s = self._cpu_s[after] - self._cpu_s[before]
        return self._cpu_s[before] + min(1.0, max(0.0, part)) * used_s
