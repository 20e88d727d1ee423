"""Producers, workers, schedulers and operators take turns on one queue, in any order.

Every step is a command or two on a real server; after each of them the whole queue is compared
with what its jobs must look like (`ledger.py`). At the end all faults are over, and every job
has come to exactly one end.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from chasquimq import BackoffSpec, Queue, RepeatPattern, UnrecoverableError
from chasquimq.errors import QueueFull, ServerOutOfMemory, StoreError
from chasquimq.settings import AbilitySettings
from machine.ledger import Ledger
from machine.picture import KINDS, Picture, kind_of
from machine.stepped_worker import (
    BUDGET,
    GROUP,
    HOUR_MS,
    SteppedWorker,
    expire_leases,
    losing_the_reply,
)
from support.raw import Raw

WORKERS_MAX = 3
# Nothing here waits for anything but the server.
STEP_S_MAX = 10.0
DRAIN_ROUNDS_MAX = 60
CAP = 4
OWN_IDS = ("own 0", "own 1", "own/2")
SPEC = "tick"
FALLBACKS = AbilitySettings(ack_delete=False, claim_on_read=False, idempotent_add=False)

MISHAPS = [
    *["lose_a_reply"] * 3, *["forget_scripts"] * 2, "run_out_of_memory", "delete_an_entry",
    "lose_the_group",
]  # fmt: skip

picks = st.integers(min_value=0, max_value=7)
budgets = st.sampled_from([None, 1, 2, 3])
delays_ms = st.sampled_from([0, 0, HOUR_MS])
names = st.sampled_from(["slow", "slow", "quick"])
losses = st.sampled_from([False, False, False, True])
fates = st.sampled_from(
    [None, ValueError, ValueError, UnrecoverableError, asyncio.CancelledError, SystemExit]
)


class QueueMachine(RuleBasedStateMachine):
    """One queue, and everyone who has to do with it."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.url = url
        self.queue_name = f"q-{uuid.uuid4().hex[:12]}"
        self.ledger = Ledger()
        self.workers: list[SteppedWorker] = []
        self.dead_consumers: list[str] = []
        self.worker_count = 0
        self.add_count = 0
        self.is_out_of_memory = False
        self.loses_next_reply = False
        self.has_lost_group = False
        self.raw = self.do(Raw.open(url, self.queue_name))
        self.picture = self.do(Picture.take(self.raw))

    def do(self, act):
        return self.loop.run_until_complete(asyncio.wait_for(act, STEP_S_MAX))

    # ── who takes part ───────────────────────────────────────────────────────────────────────

    @initialize(has_natives=st.booleans(), worker_count=st.integers(1, WORKERS_MAX))
    def open(self, has_natives: bool, worker_count: int) -> None:
        self.abilities = AbilitySettings() if has_natives else FALLBACKS
        options = {"redis_url": self.url, "abilities": self.abilities}
        self.queue = Queue(self.queue_name, **options)
        self.capped = Queue(self.queue_name, max_stream_len=CAP, **options)
        for _ in range(worker_count):
            self.revive()
        for name in ("slow", "slow", "quick"):
            self.add(name, 0, 2)

    @precondition(lambda self: len(self.workers) < WORKERS_MAX)
    @rule()
    def revive(self) -> None:
        self.worker_count += 1
        self.do(self.join(f"w{self.worker_count}", abilities=self.abilities))

    async def join(self, consumer: str, **options) -> None:
        worker = SteppedWorker(self.url, self.queue_name, consumer, self.started, **options)
        try:
            await worker.open()
        except ServerOutOfMemory:
            assert self.is_out_of_memory
            await worker.crash()
        else:
            self.workers.append(worker)

    def started(self, run) -> None:
        others = [other for worker in self.workers for other in worker.runs]
        self.ledger.started(run, others)

    def worker(self, pick: int) -> SteppedWorker:
        return self.workers[pick % len(self.workers)]

    def run_of(self, pick: int):
        runs = [run for worker in self.workers for run in worker.runs]
        return runs[pick % len(runs)]

    has_workers = precondition(lambda self: self.workers)
    has_runs = precondition(lambda self: any(worker.runs for worker in self.workers))

    # ── adding ───────────────────────────────────────────────────────────────────────────────

    @rule(name=names, delay_ms=delays_ms, budget=budgets)
    def add(self, name: str, delay_ms: int, budget: int | None) -> None:
        data = self.next_data()
        act = self.queue.add(name, data, delay_ms=delay_ms, **options(budget))
        job = self.attempt(act, self.queue)
        if job is not None:
            self.ledger.open(job.id, data, budget or BUDGET)

    @rule(name=names, delay_ms=delays_ms, own_id=st.sampled_from(OWN_IDS))
    def add_unique(self, name: str, delay_ms: int, own_id: str) -> None:
        data = self.next_data()
        known = self.ledger.accounts.get(own_id)
        is_taken = known is not None and not known.is_cancelled
        job = self.attempt(self.queue.add(name, data, delay_ms=delay_ms, job_id=own_id), self.queue)
        if job is None:
            return
        assert job.is_duplicate is is_taken, "an id is taken from its first add on"
        if not is_taken:
            self.ledger.open(own_id, data, BUDGET)

    @rule(count=st.integers(1, 3), delay_ms=delays_ms)
    def add_bulk(self, count: int, delay_ms: int) -> None:
        data = [self.next_data() for _ in range(count)]
        plans = [
            {"name": "slow", "data": one, "delay_ms": delay_ms if at else 0}
            for at, one in enumerate(data)
        ]
        jobs = self.attempt(self.queue.add_bulk(plans), self.queue)
        for job, one in zip(jobs or [], data, strict=False):
            self.ledger.open(job.id, one, BUDGET)

    @rule()
    def add_under_the_cap(self) -> None:
        data = self.next_data()
        is_full = len(self.picture.stream) >= CAP
        try:
            job = self.attempt(self.capped.add("slow", data), self.capped)
        except QueueFull:
            assert is_full, "there was room"
            return
        assert job is None or not is_full, "there was no room"
        if job is not None:
            self.ledger.open(job.id, data, BUDGET)

    def next_data(self) -> list[int]:
        self.add_count += 1
        return [self.add_count]

    def attempt(self, act, queue: Queue):
        """Ask the server for something; without memory it may refuse, and then nothing is done."""
        try:
            return self.do(self.maybe_lossy(act, queue._store().link))
        except ServerOutOfMemory:
            assert self.is_out_of_memory
            return None

    async def maybe_lossy(self, act, link):
        loses, self.loses_next_reply = self.loses_next_reply, False
        return await (losing_the_reply(link, act) if loses else act)

    # ── working ──────────────────────────────────────────────────────────────────────────────

    @has_workers
    @rule(pick=picks, loses_reply=losses)
    def read(self, pick: int, loses_reply: bool) -> None:
        self.loses_next_reply = loses_reply
        worker = self.worker(pick)
        self.step(worker.read(), worker.store._reads)

    @has_runs
    @rule(pick=picks, fate=fates)
    def end(self, pick: int, fate: type[BaseException] | None) -> None:
        run = self.run_of(pick)
        self.do(run.worker.end(run, fate("no") if fate else run.data))

    @has_workers
    @rule(pick=picks, fate=fates)
    def work(self, pick: int, fate: type[BaseException] | None) -> None:
        """Read, run and flush, as an undisturbed worker does."""
        self.read(pick, loses_reply=False)
        for run in list(self.worker(pick).runs):
            self.do(run.worker.end(run, fate("no") if fate else run.data))
        self.flush(pick, loses_reply=False)

    @has_workers
    @rule(pick=picks, loses_reply=losses)
    def flush(self, pick: int, loses_reply: bool) -> None:
        self.loses_next_reply = loses_reply
        worker = self.worker(pick)
        self.ledger.completing(completions(worker))
        self.step(worker.flush(), worker.store.writes)
        if loses_reply:
            self.step(worker.flush(), None)

    @has_workers
    @rule(pick=picks, is_waiting_long=st.booleans())
    def beat(self, pick: int, is_waiting_long: bool) -> None:
        worker = self.worker(pick)
        if is_waiting_long:
            worker.grow_old()
            self.step(worker.uncharge(), worker.store.writes)
        self.do(worker.beat())

    @has_workers
    @rule(pick=picks, reader=picks)
    def stand_still(self, pick: int, reader: int) -> None:
        """A worker stood still for longer than its leases last, and another one reads."""
        worker = self.worker(pick)
        others = max(1, len(self.workers) - 1)
        worker.grow_old()
        self.ledger.doubtful |= self.do(expire_leases(self.raw, worker.consumer))
        self.read(pick + 1 + reader % others, loses_reply=False)

    @has_workers
    @rule(pick=picks, is_long_ago=st.booleans())
    def crash(self, pick: int, is_long_ago: bool) -> None:
        """A worker is killed, another starts in its place."""
        worker = self.worker(pick)
        self.workers.remove(worker)
        self.dead_consumers.append(worker.consumer)
        self.do(worker.crash())
        self.revive()
        if is_long_ago:
            self.bury_the_dead()

    def bury_the_dead(self) -> None:
        for consumer in self.dead_consumers:
            self.do(expire_leases(self.raw, consumer))

    @has_workers
    @rule(pick=picks)
    def stop(self, pick: int) -> None:
        worker = self.worker(pick)
        self.ledger.completing(completions(worker))
        self.workers.remove(worker)
        self.do(worker.stop())
        self.revive()
        if not self.has_lost_group:
            names = self.do(self.raw.consumers())
            assert worker.consumer not in names, "a polite worker leaves nothing behind"

    # ── upkeep ───────────────────────────────────────────────────────────────────────────────

    @precondition(lambda self: self.picture.delayed)
    @rule(pick=picks)
    def fall_due(self, pick: int) -> None:
        """An hour passes for one delayed job."""
        at = pick % len(self.picture.delayed)
        due_ms, job_id = self.picture.now_ms - 1, self.picture.delayed[at][0]
        self.do(self.with_memory(make_due(self.raw, at, due_ms, job_id)))

    @has_workers
    @precondition(lambda self: self.picture.delayed)
    @rule(pick=picks)
    def pass_an_hour(self, pick: int) -> None:
        for at in range(len(self.picture.delayed)):
            self.fall_due(at)
        self.every_job_is_where_it_must_be()
        self.promote(pick, loses_reply=False)

    @has_workers
    @rule(pick=picks, loses_reply=losses)
    def promote(self, pick: int, loses_reply: bool) -> None:
        self.loses_next_reply = loses_reply
        worker = self.worker(pick)
        self.step(worker.promote(), worker.store.writes)

    @precondition(lambda self: len(self.workers) > 1)
    @rule()
    def promote_twice(self) -> None:
        """Two believe that they lead."""
        self.step(gather(*(worker.promote() for worker in self.workers)), None)

    @rule(limit=st.sampled_from([None, 2]))
    def plan_a_repeat(self, limit: int | None) -> None:
        self.attempt(
            self.queue.upsert_repeatable_job(
                SPEC, [0], repeat=RepeatPattern.every(HOUR_MS), limit=limit
            ),
            self.queue,
        )

    @has_workers
    @precondition(lambda self: self.picture.specs)
    @rule(schedulers=st.integers(1, 2), pick=picks)
    def fire(self, schedulers: int, pick: int) -> None:
        """A window comes, and is seen by one scheduler or by two at once."""
        (key,) = self.picture.specs
        due_ms = self.picture.now_ms - self.worker_count - len(self.ledger.accounts) - 1
        self.do(self.with_memory(self.raw("ZADD", self.raw.keys.repeat, "XX", due_ms, key)))
        before = self.do(Picture.take(self.raw))
        both = [self.worker(pick + at) for at in range(schedulers)]
        agendas = self.do(gather(*(worker.agenda() for worker in both)))
        for worker, agenda in zip(both, agendas, strict=True):
            self.step(worker.fire(agenda), worker.store.writes)
        self.note_fires(before)

    def note_fires(self, before: Picture) -> None:
        after = self.do(Picture.take(self.raw))
        fresh = Counter(after.stream.values()) - Counter(before.stream.values())
        assert fresh.total() <= 1, f"one window, {fresh.total()} jobs"
        may_be_none = self.is_out_of_memory or fresh.total() == 1
        assert may_be_none or after.specs == before.specs, "a window passed without its job"
        for job_id in fresh:
            self.ledger.open(job_id, [0], BUDGET)

    @has_workers
    @rule(pick=picks)
    def sweep(self, pick: int) -> None:
        worker = self.worker(pick)
        self.step(worker.sweep(), worker.store.writes)

    # ── operators ────────────────────────────────────────────────────────────────────────────

    @precondition(lambda self: self.picture.delayed)
    @rule(pick=picks)
    def cancel(self, pick: int) -> None:
        job_id, _ = self.picture.delayed[pick % len(self.picture.delayed)]
        is_cancelled = self.attempt(self.queue.cancel_delayed(job_id), self.queue)
        if is_cancelled is None:
            return
        assert is_cancelled, "what is delayed can be cancelled"
        self.ledger.accounts[job_id].is_cancelled = True

    @precondition(lambda self: self.ledger.accounts)
    @rule(pick=picks)
    def cancel_what_is_not_delayed(self, pick: int) -> None:
        waiting = {job_id for job_id, _ in self.picture.delayed}
        others = sorted(self.ledger.accounts.keys() - waiting)
        if others:
            job_id = others[pick % len(others)]
            assert not self.attempt(self.queue.cancel_delayed(job_id), self.queue)

    @precondition(lambda self: self.picture.dlq)
    @rule(limit=st.integers(1, 3))
    def replay(self, limit: int) -> None:
        before = self.picture.dlq
        if self.attempt(self.queue.replay_dlq(limit), self.queue) is not None:
            after = self.do(Picture.take(self.raw)).dlq
            assert after == before[limit:]
            self.ledger.replayed(before[:limit])

    @rule(pick=picks, what=st.sampled_from(MISHAPS))
    def mishap(self, pick: int, what: str) -> None:
        getattr(self, what)(pick)

    def lose_a_reply(self, pick: int) -> None:
        self.loses_next_reply = True

    def forget_scripts(self, pick: int) -> None:
        self.do(self.raw("SCRIPT", "FLUSH"))

    def delete_an_entry(self, pick: int) -> None:
        entry_ids = sorted(self.picture.stream)
        if not entry_ids:
            return
        entry_id = entry_ids[pick % len(entry_ids)]
        self.ledger.destroyed([self.picture.stream[entry_id]])
        self.ledger.ghosts.add(entry_id)
        self.do(self.raw("XDEL", self.raw.keys.stream, entry_id))

    def lose_the_group(self, pick: int) -> None:
        """Counts and owners are gone with it, and with the stream every job in it."""
        if self.is_out_of_memory:
            return  # a worker waits until it can make the group again
        self.has_lost_group = True
        self.ledger.destroyed(self.picture.stream.values())
        stream = self.raw.keys.stream
        lose = ("DEL", stream) if pick % 2 else ("XGROUP", "DESTROY", stream, GROUP)
        self.do(gather(self.raw(*lose)))

    def run_out_of_memory(self, pick: int) -> None:
        self.is_out_of_memory = True
        stream = self.raw.keys.stream
        self.do(gather(self.raw("XGROUP", "CREATE", stream, GROUP, "0", "MKSTREAM")))
        self.do(self.raw("CONFIG", "SET", "maxmemory", 1))

    @precondition(lambda self: self.is_out_of_memory)
    @rule()
    def memory_returns(self) -> None:
        self.is_out_of_memory = False
        self.do(self.raw("CONFIG", "SET", "maxmemory", 0))

    async def with_memory(self, act) -> None:
        """What time does, it does to a full server, too."""
        await self.raw("CONFIG", "SET", "maxmemory", 0)
        await act
        await self.raw("CONFIG", "SET", "maxmemory", int(self.is_out_of_memory))

    def step(self, act, link) -> None:
        """A step of a loop: what the server refuses is tried again later, as a loop does."""
        try:
            self.do(act if link is None else self.maybe_lossy(act, link))
        except StoreError:
            for worker in self.workers:
                self.do(worker.settle())

    # ── what must be true ────────────────────────────────────────────────────────────────────

    @invariant()
    def every_job_is_where_it_must_be(self) -> None:
        self.picture = self.do(Picture.take(self.raw))
        self.ledger.compare(self.picture)
        assert not self.ledger.wrongs, self.ledger.wrongs

    def teardown(self) -> None:
        try:
            if hasattr(self, "queue"):
                self.do(self.raw("CONFIG", "SET", "maxmemory", 0))
                if not self.ledger.wrongs:
                    self.come_to_an_end()
        finally:
            self.do(self.close())
            self.loop.close()

    def come_to_an_end(self) -> None:
        """No more faults: a fresh worker finishes everything, once."""
        self.is_out_of_memory = self.loses_next_reply = False
        for worker in self.workers:
            self.dead_consumers.append(worker.consumer)
            self.do(worker.crash())
        self.workers.clear()
        self.do(self.join("last", concurrency=50))
        for _ in range(DRAIN_ROUNDS_MAX):
            self.bury_the_dead()
            if self.picture.delayed:
                self.pass_an_hour(0)
            self.work(0, None)
            self.every_job_is_where_it_must_be()
            if not self.picture.stream and not self.picture.delayed:
                break
        self.sweep(0)
        self.every_job_is_where_it_must_be()
        self.has_ended()

    def has_ended(self) -> None:
        picture = self.picture
        left = {*picture.stream, *picture.delayed, *picture.pending}
        assert not left, "work is left"
        self.do(self.check_expiries())
        self.do(self.check_events())

    async def check_expiries(self) -> None:
        prefix = self.raw.keys.stream.removesuffix("stream")
        for key in self.picture.keys:
            if KINDS[kind_of(key)]:
                assert await self.raw("PTTL", prefix + key) != -1, f"{key} stays for ever"

    async def check_events(self) -> None:
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

    async def close(self) -> None:
        for worker in self.workers:
            await worker.crash()
        for queue in (getattr(self, "queue", None), getattr(self, "capped", None)):
            if queue is not None:
                await queue.close()
        await self.raw("FLUSHALL")
        await self.raw.close()


def options(budget: int | None) -> dict:
    if budget is None:
        return {}
    return {"attempts": budget, "backoff": BackoffSpec.fixed(HOUR_MS, 0)}


def completions(worker: SteppedWorker) -> list:
    acker = worker.pipeline.outcomes.acker
    return [move.delivery for move in (*acker._under_way, *acker._ready)]


async def gather(*acts):
    """All of them, one after the other on the wire, none of them waiting for another."""
    answers = await asyncio.gather(*acts, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException) and not isinstance(answer, StoreError):
            raise answer
    return answers


async def make_due(raw: Raw, at: int, due_ms: int, job_id: str) -> None:
    (member,) = await raw("ZRANGE", raw.keys.delayed, at, at)
    await raw("ZADD", raw.keys.delayed, "XX", due_ms, member)
    if await raw("HEXISTS", raw.keys.dix, job_id):
        await raw("HSET", raw.keys.dix, job_id, due_ms)
