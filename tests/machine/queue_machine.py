"""Producers, workers, schedulers and operators take turns on one queue, in any order.

Every step is a command or two on a real server; after each of them the whole queue is compared
with what its jobs must look like (`ledger.py`). At the end all faults are over, and every job
has come to exactly one end.
"""

from __future__ import annotations

from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import initialize

from machine.adding import Adding
from machine.operating import Operating
from machine.picture import KINDS, kind_of
from machine.stage import WORKERS_MAX
from machine.upkeeping import Upkeeping
from machine.working import Working

DRAIN_ROUNDS_MAX = 60
LAST_CONCURRENCY = 50


class QueueMachine(Adding, Working, Upkeeping, Operating):
    @initialize(has_natives=st.booleans(), worker_count=st.integers(1, WORKERS_MAX))
    def first_steps(self, has_natives: bool, worker_count: int) -> None:
        self.open(has_natives=has_natives, worker_count=worker_count)
        for name in ("slow", "slow", "quick"):
            self.add(name, 0, 2)

    def come_to_an_end(self) -> None:
        """No more faults: a fresh worker finishes everything, once."""
        self.find_memory()
        self.loses_next_reply = False
        for worker in list(self.workers):
            self.kill(worker)
        self.join("last", concurrency=LAST_CONCURRENCY)
        for _ in range(DRAIN_ROUNDS_MAX):
            if self._is_done():
                break
            self.let_leases_of_the_dead_run_out()
            self.pass_an_hour(0)
            self.work(0, None)
        self.sweep(0)
        self.look()
        left = {*self.picture.stream, *self.picture.delayed, *self.picture.pending}
        assert not left, "work is left"
        self.do(self._check_expiries())
        self.do(self._check_events())

    def _is_done(self) -> bool:
        self.look()
        return not self.picture.stream and not self.picture.delayed

    async def _check_expiries(self) -> None:
        prefix = self.raw.keys.stream.removesuffix("stream")
        for key in self.picture.keys:
            if KINDS[kind_of(key)]:
                assert await self.raw("PTTL", prefix + key) != -1, f"{key} stays for ever"

    async def _check_events(self) -> None:
        """Events may be missing, but never false, and never twice."""
        rows = [fields for _, fields in await self.raw.entries(self.raw.keys.events)]
        told = Counter(
            (fields[b"id"].decode(), fields[b"e"].decode())
            for fields in rows
            if fields[b"e"] in (b"completed", b"dlq")
        )
        for (job_id, event), count in told.items():
            account = self.ledger.accounts[job_id]
            assert count <= 1 + account.generation, f"{job_id}: {event} {count} times"
            assert event == "dlq" or account.completing, f"{job_id} never completed"
