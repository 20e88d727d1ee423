"""Steps of those who keep a queue moving: promoters, schedulers, janitors; and of time itself."""

from __future__ import annotations

from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import rule

from chasquimq import RepeatPattern
from machine.picture import Picture
from machine.stage import Stage, at_once, losses, picks, when
from machine.stepped_worker import BUDGET, HOUR_MS
from machine.working import has_workers
from support.raw import Raw

SPEC = "tick"
has_delayed = when(lambda self: self.picture.delayed)


class Upkeeping(Stage):
    @rule(pick=picks)
    @has_delayed
    def fall_due(self, pick: int) -> None:
        """An hour passes for one delayed job."""
        at = pick % len(self.picture.delayed)
        job_id, _ = self.picture.delayed[at]
        self.let_time_do(_make_due(self.raw, at, self.picture.now_ms - 1, job_id))

    @rule(pick=picks)
    @has_workers
    @has_delayed
    def pass_an_hour(self, pick: int) -> None:
        for at in range(len(self.picture.delayed)):
            self.fall_due(at)
        self.look()
        self.promote(pick, loses_reply=False)

    @rule(pick=picks, loses_reply=losses)
    @has_workers
    def promote(self, pick: int, loses_reply: bool) -> None:
        self.loses_next_reply = loses_reply
        worker = self.worker(pick)
        self.step(worker.promote(), worker.store.writes)

    @rule()
    @has_workers
    def promote_together(self) -> None:
        """All believe that they lead."""
        self.step(at_once(*(worker.promote() for worker in self.workers)), None)

    @rule(limit=st.sampled_from([None, 2]))
    def plan_a_repeat(self, limit: int | None) -> None:
        every = RepeatPattern.every(HOUR_MS)
        act = self.queue.upsert_repeatable_job(SPEC, [0], repeat=every, limit=limit)
        self.attempt(act, self.queue)

    @rule(schedulers=st.integers(1, 2), pick=picks)
    @has_workers
    @when(lambda self: self.picture.specs)
    def fire(self, schedulers: int, pick: int) -> None:
        """A window comes, and is seen by one scheduler or by two at once."""
        (key,) = self.picture.specs
        # No two windows of a history are the same: each is before the last.
        soonest_ms = self.picture.now_ms - self.worker_count - len(self.ledger.accounts) - 1
        due_ms = self.last_due_ms = min(soonest_ms, getattr(self, "last_due_ms", soonest_ms) - 1)
        self.let_time_do(self.raw("ZADD", self.raw.keys.repeat, "XX", due_ms, key))
        before = self.do(Picture.take(self.raw))
        both = [self.worker(pick + at) for at in range(schedulers)]
        agendas = [self.do(worker.agenda()) for worker in both]
        for worker, agenda in zip(both, agendas, strict=True):
            self.step(worker.fire(agenda), worker.store.writes)
        self._note_fires(before)

    @rule(pick=picks)
    @has_workers
    def sweep(self, pick: int) -> None:
        worker = self.worker(pick)
        self.step(worker.sweep(), worker.store.writes)

    def _note_fires(self, before: Picture) -> None:
        after = self.do(Picture.take(self.raw))
        fresh = Counter(after.stream.values()) - Counter(before.stream.values())
        assert fresh.total() <= 1, f"one window, {fresh.total()} jobs"
        may_be_none = self.is_out_of_memory or fresh.total() == 1
        assert may_be_none or after.specs == before.specs, "a window passed without its job"
        for job_id in fresh:
            self.ledger.open(job_id, [0], BUDGET)


async def _make_due(raw: Raw, at: int, due_ms: int, job_id: str) -> None:
    (member,) = await raw("ZRANGE", raw.keys.delayed, at, at)
    await raw("ZADD", raw.keys.delayed, "XX", due_ms, member)
    if await raw("HEXISTS", raw.keys.dix, job_id):
        await raw("HSET", raw.keys.dix, job_id, due_ms)
