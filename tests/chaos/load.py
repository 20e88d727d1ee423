"""Jobs of every kind, added all the time and never more than the workers can soon do."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from chasquimq.errors import StoreError
from support.trial import Trial

_BULK = 50
_BACKLOG_MAX = 1_500
_BACKOFF = {"kind": "fixed", "delay_ms": 50, "jitter_ms": 0}
_FATES = {"completes": 85, "fails once": 10, "gives up": 5}
_DELAYED_SHARE, _NAMED_SHARE = 0.1, 0.05


class Load:
    """Adds until it is told to stop, or until it has added so many."""

    def __init__(self, trial: Trial, seed: int, jobs_max: int) -> None:
        self._trial = trial
        self._dice = random.Random(seed)
        self._jobs_max = jobs_max
        self._named = 0
        self._is_stopped = False
        self.error_count = 0

    @property
    def is_over(self) -> bool:
        return self._is_stopped or len(self._trial.acknowledged) >= self._jobs_max

    def stop(self) -> None:
        self._is_stopped = True

    async def run(self) -> None:
        while not self.is_over:
            try:
                if (await self._trial.queue.counts()).backlog > _BACKLOG_MAX:
                    await asyncio.sleep(0.05)
                    continue
                await self._trial.add_bulk([self._job() for _ in range(_BULK)])
            except StoreError:
                self.error_count += 1
                await asyncio.sleep(0.1)

    def _job(self) -> dict[str, Any]:
        (fate,) = self._dice.choices(list(_FATES), list(_FATES.values()))
        job: dict[str, Any] = {"name": "n", "data": fate, "backoff": _BACKOFF}
        if self._dice.random() < _DELAYED_SHARE:
            job["delay_ms"] = self._dice.randrange(50, 2_000)
        if self._dice.random() < _NAMED_SHARE:
            self._named += 1
            job["job_id"] = f"named-{self._named}"
        return job
