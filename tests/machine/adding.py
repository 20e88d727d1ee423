"""Steps of producers: one job or many, now or later, with ids of their own or under a cap."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import rule

from chasquimq import BackoffSpec
from chasquimq.errors import QueueFull
from machine.stage import CAP, Stage
from machine.stepped_worker import BUDGET, HOUR_MS

OWN_IDS = ("own 0", "own 1", "own/2")
budgets = st.sampled_from([None, 1, 2, 3])
delays_ms = st.sampled_from([0, 0, HOUR_MS])
names = st.sampled_from(["slow", "slow", "quick"])


class Adding(Stage):
    @rule(name=names, delay_ms=delays_ms, budget=budgets)
    def add(self, name: str, delay_ms: int, budget: int | None) -> None:
        data = self._next_data()
        job = self.attempt(
            self.queue.add(name, data, delay_ms=delay_ms, **_options(budget)), self.queue
        )
        if job is not None:
            self.ledger.open(job.id, data, budget or BUDGET)

    @rule(name=names, delay_ms=delays_ms, own_id=st.sampled_from(OWN_IDS))
    def add_unique(self, name: str, delay_ms: int, own_id: str) -> None:
        data = self._next_data()
        known = self.ledger.accounts.get(own_id)
        is_taken = known is not None and not known.is_cancelled
        act = self.queue.add(name, data, delay_ms=delay_ms, job_id=own_id)
        job = self.attempt(act, self.queue)
        if job is None:
            return
        assert job.is_duplicate is is_taken, "an id is taken from its first add on"
        if not is_taken:
            self.ledger.open(own_id, data, BUDGET)

    @rule(count=st.integers(1, 3), delay_ms=delays_ms)
    def add_bulk(self, count: int, delay_ms: int) -> None:
        data = [self._next_data() for _ in range(count)]
        plans = [
            {"name": "slow", "data": one, "delay_ms": delay_ms if at else 0}
            for at, one in enumerate(data)
        ]
        jobs = self.attempt(self.queue.add_bulk(plans), self.queue)
        for job, one in zip(jobs or [], data, strict=False):
            self.ledger.open(job.id, one, BUDGET)

    @rule()
    def add_under_the_cap(self) -> None:
        data = self._next_data()
        is_full = len(self.picture.stream) >= CAP
        try:
            job = self.attempt(self.capped.add("slow", data), self.capped)
        except QueueFull:
            assert is_full, "there was room"
            return
        assert job is None or not is_full, "there was no room"
        if job is not None:
            self.ledger.open(job.id, data, BUDGET)

    def _next_data(self) -> list[int]:
        self.add_count += 1
        return [self.add_count]


def _options(budget: int | None) -> dict:
    if budget is None:
        return {}
    return {"attempts": budget, "backoff": BackoffSpec.fixed(HOUR_MS, 0)}
