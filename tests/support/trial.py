"""Adds jobs under a journal, remembers every fault, and has the checker judge what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chasquimq import Job, Queue
from chasquimq.errors import StoreError
from support.checker import Evidence, Fault, Verdict, check
from support.journal import ADD_CALL, ADD_ERR, ADD_OK, CANCEL_OK, REPLAY_OK, Journal, read_journals
from support.noting import noting
from support.places import look
from support.raw import Raw
from support.waiting import eventually

_CLOCK_READINGS = 20


class Trial:
    """One queue, one folder of journals, one verdict."""

    def __init__(self, queue: Queue, url: str, folder: Path, *, seed: int = 0) -> None:
        self.queue = queue
        self.faults: list[Fault] = []
        self.acknowledged: list[str] = []
        self.seed = seed
        self._url = url
        self._folder = folder
        self._journal = Journal(folder / "trial.journal")

    def watched(self, handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """The handler, run in this process, with its starts and ends in the journal."""
        return noting(handler, lambda: self._journal)

    async def add_bulk(self, specs: Sequence[dict[str, Any]]) -> list[Job]:
        """Add jobs; each has an id before it is sent, so that a lost answer can be told."""
        called_s = time.monotonic()
        try:
            jobs = await self.queue.add_bulk(specs)
        except StoreError as error:
            for job_id in error.job_ids:
                self._journal.note(ADD_ERR, job_id)
            raise
        for job, spec in zip(jobs, specs, strict=True):
            self._note_add(job, called_s, spec.get("delay_ms"))
        return jobs

    async def add(self, name: str, data: Any, **options: Any) -> Job:
        called_s = time.monotonic()
        try:
            job = await self.queue.add(name, data, **options)
        except StoreError as error:
            for job_id in error.job_ids:
                self._journal.note(ADD_ERR, job_id)
            raise
        self._note_add(job, called_s, options.get("delay_ms"))
        return job

    async def cancel(self, job_id: str) -> bool:
        was_cancelled = await self.queue.cancel_delayed(job_id)
        if was_cancelled:
            self._journal.note(CANCEL_OK, job_id)
        return was_cancelled

    def note_replays(self, job_ids: Sequence[str], generation: int) -> None:
        for job_id in job_ids:
            self._journal.note(REPLAY_OK, job_id, generation=generation)

    @contextmanager
    def fault(self, kind: str, pid: int | None = None) -> Iterator[None]:
        """What happens inside is a fault of that kind, to one process or to all."""
        from_s = time.monotonic()
        try:
            yield
        finally:
            self.faults.append(Fault(kind, from_s, time.monotonic(), pid))

    async def drain(self, within_s: float = 30.0) -> None:
        """Wait until nothing is ready, running or delayed."""
        await eventually(self._is_done, within_s=within_s, what="an empty queue")

    async def verdict(self, *, more_faults: Sequence[Fault] = (), **limits: Any) -> Verdict:
        """Judge; the report lies beside the journals."""
        # The server may have been killed since the last look at it.
        raw = await Raw.open(self._url, self.queue.name)
        evidence = Evidence(
            lines=read_journals(self._folder),
            places=await look(raw),
            faults=[*self.faults, *more_faults],
            seed=self.seed,
            server_offset_ms=await clock_offset_ms(raw),
            **limits,
        )
        await raw.close()
        verdict = check(evidence)
        verdict.write(self._folder / "verdict.json")
        return verdict

    def close(self) -> None:
        self._journal.close()

    def _note_add(self, job: Job, called_s: float, delay_ms: int | None) -> None:
        # The time of the call is what counts, and ids are known only after it.
        lag_ms = (time.monotonic() - called_s) * 1000
        extra = "" if delay_ms is None else int(delay_ms - lag_ms)
        self._journal.note(ADD_CALL, job.id, extra=extra)
        if not job.is_duplicate:
            self._journal.note(ADD_OK, job.id)
            self.acknowledged.append(job.id)

    async def _is_done(self) -> bool:
        try:
            return (await self.queue.counts()).backlog == 0
        except StoreError:
            return False


async def clock_offset_ms(raw: Raw) -> float:
    """What to add to this machine's monotonic clock to read the server's."""
    return min([await _reading(raw) for _ in range(_CLOCK_READINGS)])[1]


async def _reading(raw: Raw) -> tuple[float, float]:
    before_s = time.monotonic()
    seconds, micros = await raw("TIME")
    after_s = time.monotonic()
    server_ms = int(seconds) * 1000 + int(micros) / 1000
    return after_s - before_s, server_ms - (before_s + after_s) * 500
