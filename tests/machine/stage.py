"""Where a history takes place: one queue, whoever takes part, and what must be true of it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from functools import wraps

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant

from chasquimq import Queue
from chasquimq.errors import ServerOutOfMemory, StoreError
from chasquimq.settings import AbilitySettings
from machine.ledger import Ledger
from machine.picture import Picture
from machine.stepped_worker import Run, SteppedWorker, expire_leases, losing_the_reply
from support.raw import Raw

WORKERS_MAX = 3
CAP = 4
# Nothing here waits for anything but the server.
STEP_S_MAX = 20.0
FALLBACKS = AbilitySettings(ack_delete=False, claim_on_read=False, idempotent_add=False)

picks = st.integers(min_value=0, max_value=7)
losses = st.sampled_from([False, False, False, True])


def when(condition: Callable[..., object]):
    """Leave the step out where it makes no sense; what is drawn must not depend on a server."""

    def guard(step):
        @wraps(step)
        def taken(self, *args, **kwargs) -> None:
            if condition(self):
                step(self, *args, **kwargs)

        return taken

    return guard


class Stage(RuleBasedStateMachine):
    """One queue, and everyone who has to do with it; steps are added by those who take them."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.url = url
        self.queue_name = f"q-{uuid.uuid4().hex[:12]}"
        self.ledger = Ledger()
        self.workers: list[SteppedWorker] = []
        self.dead_consumers: list[str] = []
        self.worker_count = self.add_count = 0
        self.is_open = self.is_out_of_memory = False
        self.loses_next_reply = self.has_lost_group = False
        self.raw = self.do(Raw.open(url, self.queue_name))
        self.picture = self.do(Picture.take(self.raw))

    def open(self, *, has_natives: bool, worker_count: int) -> None:
        self.abilities = AbilitySettings() if has_natives else FALLBACKS
        options = {"redis_url": self.url, "abilities": self.abilities}
        self.queue = Queue(self.queue_name, **options)
        self.capped = Queue(self.queue_name, max_stream_len=CAP, **options)
        self.is_open = True
        for _ in range(worker_count):
            self.join()

    def do(self, act):
        return self.loop.run_until_complete(asyncio.wait_for(act, STEP_S_MAX))

    # ── who takes part ───────────────────────────────────────────────────────────────────────

    def join(self, consumer: str | None = None, **options) -> None:
        """A worker begins; a server without memory may refuse it."""
        self.worker_count += 1
        name = consumer or f"w{self.worker_count}"
        self.do(self._join(name, {"abilities": self.abilities} | options))

    async def _join(self, consumer: str, options: dict) -> None:
        worker = SteppedWorker(self.url, self.queue_name, consumer, self._started, **options)
        try:
            await worker.open()
        except ServerOutOfMemory:
            assert self.is_out_of_memory
            await worker.crash()
        else:
            self.workers.append(worker)

    def kill(self, worker: SteppedWorker) -> None:
        self.workers.remove(worker)
        self.dead_consumers.append(worker.consumer)
        self.do(worker.crash())

    def let_leases_of_the_dead_run_out(self) -> None:
        for consumer in self.dead_consumers:
            self.do(expire_leases(self.raw, consumer))

    @property
    def runs(self) -> list[Run]:
        return [run for worker in self.workers for run in worker.runs]

    def worker(self, pick: int) -> SteppedWorker:
        return self.workers[pick % len(self.workers)]

    def _started(self, run: Run) -> None:
        self.ledger.started(run, self.runs)

    # ── how steps are taken ──────────────────────────────────────────────────────────────────

    def attempt(self, act, queue: Queue):
        """Ask the server for something; without memory it may refuse, and then nothing is done."""
        try:
            return self.do(self._maybe_lossy(act, queue))
        except ServerOutOfMemory:
            assert self.is_out_of_memory
            return None

    def step(self, act, link) -> None:
        """A step of a loop: what the server refuses is tried again later, as a loop does."""
        try:
            self.do(act if link is None else self._maybe_lossy(act, link))
        except StoreError:
            for worker in self.workers:
                self.do(worker.settle())

    async def _maybe_lossy(self, act, link):
        if isinstance(link, Queue):
            link = link._store().connection
        loses, self.loses_next_reply = self.loses_next_reply, False
        return await (losing_the_reply(link, act) if loses else act)

    def let_time_do(self, act) -> None:
        """What time does, it does to a full server, too."""
        self.do(self.raw("CONFIG", "SET", "maxmemory", 0))
        self.do(act)
        self.do(self.raw("CONFIG", "SET", "maxmemory", int(self.is_out_of_memory)))

    # ── what must be true ────────────────────────────────────────────────────────────────────

    @invariant()
    def look(self) -> None:
        """Every job is where it must be."""
        self.picture = self.do(Picture.take(self.raw))
        self.ledger.compare(self.picture)
        assert not self.ledger.wrongs, self.ledger.wrongs

    def come_to_an_end(self) -> None:
        raise NotImplementedError

    def teardown(self) -> None:
        try:
            if self.is_open and not self.ledger.wrongs:
                self.come_to_an_end()
        finally:
            self.do(self._close())
            self.loop.close()

    async def _close(self) -> None:
        for worker in self.workers:
            await worker.crash()
        if self.is_open:
            await self.queue.close()
            await self.capped.close()
        await self.raw("CONFIG", "SET", "maxmemory", 0)
        await self.raw("FLUSHALL")
        await self.raw.close()


async def at_once(*acts):
    """All of them, none waiting for another; what the server refuses is no matter."""
    answers = await asyncio.gather(*acts, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException) and not isinstance(answer, StoreError):
            raise answer
    return answers
