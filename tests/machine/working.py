"""Steps of workers: they read, run, flush, renew, stand still, leave and die."""

from __future__ import annotations

import asyncio

from hypothesis import strategies as st
from hypothesis.stateful import rule

from chasquimq import UnrecoverableError
from machine.picture import Picture
from machine.stage import WORKERS_MAX, Stage, losses, picks, when
from machine.stepped_worker import SteppedWorker, expire_leases

Fate = type[BaseException] | None
fates = st.sampled_from(
    [None, ValueError, ValueError, UnrecoverableError, asyncio.CancelledError, SystemExit]
)
has_workers = when(lambda self: self.workers)


class Working(Stage):
    @rule()
    @when(lambda self: len(self.workers) < WORKERS_MAX)
    def begin(self) -> None:
        self.join()

    @rule(pick=picks, loses_reply=losses)
    @has_workers
    def read(self, pick: int, loses_reply: bool) -> None:
        self.loses_next_reply = loses_reply
        worker = self.worker(pick)
        self.step(worker.read(), worker.store._reads)

    @rule(pick=picks, fate=fates)
    @when(lambda self: self.runs)
    def end(self, pick: int, fate: Fate) -> None:
        run = self.runs[pick % len(self.runs)]
        self.do(run.worker.end(run, fate("no") if fate else run.data))

    @rule(pick=picks, loses_reply=losses)
    @has_workers
    def flush(self, pick: int, loses_reply: bool) -> None:
        self.loses_next_reply = loses_reply
        worker = self.worker(pick)
        self.ledger.completing(_completions(worker))
        of_others = self._failures_of_others(worker)
        self.step(worker.flush(), worker.store.writes)
        if loses_reply:
            self.step(worker.flush(), None)
        moved = of_others - self.do(Picture.take(self.raw)).stream.keys()
        assert not moved, "only its owner may fail a job"

    def _failures_of_others(self, worker: SteppedWorker) -> set[bytes]:
        """Entries that this worker is about to fail and does not hold any more."""
        owners = self.do(Picture.take(self.raw)).pending
        settlement = worker.pipeline.settlement
        failing = {
            move.entry_id
            for loop in (settlement.retrier, settlement.burier)
            for move in (*loop._under_way, *loop.ready)
        }
        return {one for one in failing & owners.keys() if owners[one] != worker.consumer}

    @rule(pick=picks, fate=fates)
    @has_workers
    def work(self, pick: int, fate: Fate) -> None:
        """Read, run and flush, as an undisturbed worker does."""
        self.read(pick, loses_reply=False)
        self._finish(self.worker(pick), fate)

    @rule(pick=picks, is_waiting_long=st.booleans())
    @has_workers
    def beat(self, pick: int, is_waiting_long: bool) -> None:
        worker = self.worker(pick)
        if is_waiting_long:
            worker.grow_old()
            self.step(worker.uncharge(), worker.store.writes)
        self.do(worker.beat())

    @rule(pick=picks, reader=picks)
    @has_workers
    def stand_still(self, pick: int, reader: int) -> None:
        """A worker stood still for longer than its leases last, and another one reads."""
        worker = self.worker(pick)
        others = max(1, len(self.workers) - 1)
        worker.grow_old()
        self.ledger.doubtful |= self.do(expire_leases(self.raw, worker.consumer))
        self.read(pick + 1 + reader % others, loses_reply=False)

    @rule(pick=picks, fate=fates, of_other=st.none() | fates.map(lambda fate: [fate]))
    @has_workers
    def come_back_late(self, pick: int, fate: Fate, of_other: list[Fate] | None) -> None:
        """It ends its jobs while another runs them, or after another has ended them."""
        late = self.worker(pick)
        self.stand_still(pick, 0)
        if of_other is not None:
            self._finish(self.worker(pick + 1), of_other[0])
        self._finish(late, fate)

    def _finish(self, worker: SteppedWorker, fate: Fate) -> None:
        for run in list(worker.runs):
            self.do(worker.end(run, fate("no") if fate else run.data))
        self.flush(self.workers.index(worker), loses_reply=False)

    @rule(pick=picks, is_long_ago=st.booleans())
    @has_workers
    def crash(self, pick: int, is_long_ago: bool) -> None:
        """A worker is killed, another starts in its place."""
        self.kill(self.worker(pick))
        self.join()
        if is_long_ago:
            self.let_leases_of_the_dead_run_out()

    @rule(pick=picks)
    @has_workers
    def stop(self, pick: int) -> None:
        worker = self.worker(pick)
        self.ledger.completing(_completions(worker))
        self.workers.remove(worker)
        self.do(worker.stop())
        self.join()
        if not self.has_lost_group:
            left = self.do(self.raw.consumers())
            assert worker.consumer not in left, "a polite worker leaves nothing behind"


def _completions(worker: SteppedWorker) -> list:
    acker, *_ = worker.pipeline.settlement.loops
    return [move.delivery for move in (*acker._under_way, *acker.ready)]
