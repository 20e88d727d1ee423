"""The plans of a bulk: jobs in it that repeat, checked with the others and written after them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import chain
from typing import Any, Literal, TypeVar

from chasquimq.errors import IdConflict, SettingsError, StoreError, WireError
from chasquimq.job import Job
from chasquimq.model.job_options import BackoffLike, duration_ms
from chasquimq.queue.connections import DurabilityLike
from chasquimq.queue.control import Cancelling, Finding
from chasquimq.queue.dlq import DeadLetters
from chasquimq.queue.repeatables import MissedFiresLike, Repeating, RepeatLike
from chasquimq.queue.results import Resulting
from chasquimq.store.net.clock import wall_ms
from chasquimq.store.net.errors import about
from chasquimq.store.producer.writes import ADDED, AddMark
from chasquimq.wire.new_job import JobSpec, NewJob, check_keys, new_job_id, new_job_ids
from chasquimq.wire.repeat import NewRepeat

_USELESS = ("job_id", "delay_ms", "delay", "expires_ms", "timeout_ms")


def plans_in(jobs: Sequence[JobSpec]) -> Sequence[int]:
    """Which jobs of a bulk repeat."""
    # Nearly every bulk is made of plain names and data, and should not pay for the others.
    if max(map(len, jobs), default=0) <= 2:
        return ()
    return [at for at, spec in enumerate(jobs) if _repeats(spec)]


def plain_in(jobs: Sequence[JobSpec], repeating: Sequence[int]) -> Sequence[int]:
    """Which do not."""
    every = range(len(jobs))
    return sorted(set(every) - set(repeating)) if repeating else every


def in_order(*placed: Iterable[tuple[int, Job]]) -> list[Job]:
    """The jobs of a bulk as they were given."""
    by_place = dict(chain(*placed))
    return [by_place[at] for at in sorted(by_place)]


def refuse_with_repeat(on_conflict: str, **useless: object) -> None:
    """Refuse options that a plan has no use for."""
    useless["on_conflict"] = None if on_conflict == "keep" else on_conflict
    for name, value in useless.items():
        if value is not None:
            hint = "each fire is a job of its own"
            raise SettingsError(name, value, "left out where a job repeats", hint=hint)


class BulkPlans(Repeating):
    """Checks and writes the plans of a bulk."""

    def _spell_plan(self, spec: JobSpec, _fresh_id: str, now_ms: int) -> NewRepeat:
        check_keys(spec)
        refuse_with_repeat("keep", **{name: spec.get(name) for name in _USELESS})
        new = self._new_plan(
            spec["name"], spec["data"], spec.get("repeat"), spec.get("missed_fires"),
            spec.get("attempts"), spec.get("backoff"),
        )  # fmt: skip
        # The server's clock decides the first fire; whether there is one shows here already.
        new.first_fire_ms(now_ms)
        return new

    async def _write_plans(
        self,
        plans: Sequence[NewRepeat],
        specs: Sequence[JobSpec],
        now_ms: int,
        add_timeout_ms: int | None,
    ) -> list[Job]:
        planned: list[Job] = []
        for plan, spec in zip(plans, specs, strict=True):
            try:
                deadline = self._store().deadline(add_timeout_ms)
                upserted = await self._repeats().upsert(plan, deadline)
            except StoreError as error:
                left = [one.key for one in plans[len(planned) :]]
                raise about(error, left) from error.__cause__
            is_old = not upserted.was_written
            planned.append(Job(plan.key, spec["name"], spec["data"], 0, now_ms, self, is_old))
        return planned


def _repeats(spec: JobSpec) -> bool:
    return spec.get("repeat") is not None or spec.get("missed_fires") is not None


OnConflict = Literal["keep", "raise"]
DelayMsLike = int | float | datetime
DelayLike = DelayMsLike
_OPTIONS = ("delay_ms", "delay", "attempts", "backoff", "job_id", "expires_ms", "timeout_ms")
_NO_OPTIONS = (None,) * len(_OPTIONS)
T = TypeVar("T")
Spell = Callable[[JobSpec, str, int], T]


class Adding(BulkPlans):
    """Adds jobs: at once or later, one or many, under fresh ids or your own."""

    async def add(
        self,
        name: str,
        data: Any,
        *,
        delay_ms: DelayMsLike | None = None,
        delay: timedelta | None = None,
        attempts: int | None = None,
        backoff: float | BackoffLike | Mapping[str, Any] | None = None,
        job_id: str | None = None,
        repeat: RepeatLike | None = None,
        missed_fires: MissedFiresLike | None = None,
        expires_ms: int | None = None,
        timeout_ms: int | None = None,
        unique_for_ms: int | None = None,
        on_conflict: OnConflict = "keep",
        durability: DurabilityLike | None = None,
        add_timeout_ms: int | None = None,
    ) -> Job:
        """Add one job; it is in the queue when this returns.

        An empty `name` is allowed: such a job runs only on a worker with one handler for every
        name, or with a handler for `""`.

        `delay_ms` is a number of milliseconds or an absolute datetime (naive: UTC). With a
        `job_id` the first job of that id within `unique_for_ms` is kept, and the returned job
        says so in `is_duplicate`. With `repeat` the job is planned instead, as by
        `upsert_repeatable_job`, and arguments that a plan has no use for are refused. All of it
        takes at most `add_timeout_ms`; with 0 a server that is away is not waited for.

        Raises:
            SettingsError, EncodeError, PayloadTooLarge: refused before anything was written.
            IdConflict: the id is taken by another job and `on_conflict` is "raise".
            QueueFull, ServerOutOfMemory, ServerUnreachable: the server could not take it.
            ConnectionLost: it was not confirmed in time; `outcome` tells whether it may be added.
            DurabilityNotMet: it is written, but not as safely as `durability` asks.
        """
        if repeat is not None or missed_fires is not None:
            refuse_with_repeat(
                on_conflict, job_id=job_id, delay_ms=delay_ms, delay=delay, expires_ms=expires_ms,
                timeout_ms=timeout_ms, unique_for_ms=unique_for_ms, durability=durability,
            )  # fmt: skip
            return await self._add_repeating(
                name, data, repeat, missed_fires, attempts, backoff, add_timeout_ms=add_timeout_ms
            )
        now_ms = wall_ms()
        unique_ms = self._unique_ms(unique_for_ms)
        _check_on_conflict(on_conflict)
        store, deadline = self._store(durability), None
        fresh_id = new_job_id(now_ms)
        if add_timeout_ms is not None or store.unconfirmed.is_full:
            deadline = await self._begin_add(store, add_timeout_ms, [job_id or fresh_id])
        options = (delay_ms, delay, attempts, backoff, job_id, expires_ms, timeout_ms)
        if options == _NO_OPTIONS:
            new = self._encoder().plain(name, data, fresh_id, now_ms)
        else:
            spec = dict(zip(_OPTIONS, options, strict=True), name=name, data=data)
            new = self._encoder().encode(spec, fresh_id, now_ms)
        adding = store.add(new, unique_ms, deadline)
        # The server is at work now, which is the time to make what the caller gets.
        job = Job(new.job_id, new.name, data, 0, now_ms, self)
        mark = await adding
        if mark is not ADDED:
            _raise_conflicts(on_conflict, [new], [mark])
            job.is_duplicate = True
        return job

    async def add_unique(
        self,
        name: str,
        data: Any,
        *,
        job_id: str,
        delay_ms: DelayMsLike | None = None,
        delay: timedelta | None = None,
        attempts: int | None = None,
        backoff: float | BackoffLike | Mapping[str, Any] | None = None,
        repeat: RepeatLike | None = None,
        missed_fires: MissedFiresLike | None = None,
        expires_ms: int | None = None,
        timeout_ms: int | None = None,
        unique_for_ms: int | None = None,
        on_conflict: OnConflict = "keep",
        durability: DurabilityLike | None = None,
        add_timeout_ms: int | None = None,
    ) -> Job:
        """Add a job under an id of your own; a second add of the id keeps the first job.

        With `repeat` the id becomes the key of the plan, see `upsert_repeatable_job`.
        """
        if job_id is None:  # pyright: ignore[reportUnnecessaryComparison]  callers lie
            raise SettingsError("job_id", job_id, "a string that is not blank")
        if repeat is not None or missed_fires is not None:
            refuse_with_repeat(
                on_conflict, delay_ms=delay_ms, delay=delay, expires_ms=expires_ms,
                timeout_ms=timeout_ms, unique_for_ms=unique_for_ms, durability=durability,
            )  # fmt: skip
            return await self._add_repeating(
                name, data, repeat, missed_fires, attempts, backoff, job_id, add_timeout_ms
            )
        return await self.add(
            name, data, job_id=job_id, delay_ms=delay_ms, delay=delay, attempts=attempts,
            backoff=backoff, expires_ms=expires_ms, timeout_ms=timeout_ms,
            unique_for_ms=unique_for_ms, on_conflict=on_conflict, durability=durability,
            add_timeout_ms=add_timeout_ms,
        )  # fmt: skip

    async def add_bulk(
        self,
        jobs: Sequence[JobSpec],
        *,
        unique_for_ms: int | None = None,
        on_conflict: OnConflict = "keep",
        durability: DurabilityLike | None = None,
        add_timeout_ms: int | None = None,
    ) -> list[Job]:
        """Add many jobs in as few writes as possible; each mapping has at least name and data.

        As with `add`, a name may be empty.
        All jobs are checked before the first is written. Larger bulks leave in several
        writes, so an error may come after some were added: its `job_ids` names the others.
        Each write may take `add_timeout_ms`. A job with `repeat` is planned, as by `add`;
        plans are written after the jobs.
        """
        now_ms = wall_ms()
        unique_ms = self._unique_ms(unique_for_ms)
        _check_on_conflict(on_conflict)
        _check_mappings(jobs)
        store, deadline = self._store(durability), None
        if add_timeout_ms is not None or store.unconfirmed.is_full:
            deadline = await self._begin_add(store, add_timeout_ms, _ids_of(jobs, now_ms))
        repeating = plans_in(jobs)
        plain = plain_in(jobs, repeating)
        plans = _spell_all(jobs, repeating, self._spell_plan, now_ms)
        new = self._spell_jobs(jobs, plain, now_ms)
        data = [jobs[at]["data"] for at in plain]
        adding = store.add_many(new, unique_ms, deadline) if new else None
        done = [
            Job(one.job_id, one.name, value, 0, now_ms, self)
            for one, value in zip(new, data, strict=True)
        ]
        marks = await adding if adding else []
        _raise_conflicts(on_conflict, new, marks)
        _tell_duplicates(done, marks)
        if not plans:
            return done
        specs = [jobs[at] for at in repeating]
        planned = await self._write_plans(plans, specs, now_ms, add_timeout_ms)
        return in_order(zip(plain, done, strict=True), zip(repeating, planned, strict=True))

    def _spell_jobs(
        self, jobs: Sequence[JobSpec], places: Sequence[int], now_ms: int
    ) -> list[NewJob]:
        # Nearly every bulk is made of plain names and data; the slow way finds who is not.
        new = self._encoder().all_plain(jobs, now_ms) if len(places) == len(jobs) else None
        return _spell_all(jobs, places, self._encoder().encode, now_ms) if new is None else new

    def _unique_ms(self, unique_for_ms: int | None) -> int:
        if unique_for_ms is None:
            return self._settings.unique_for_ms
        return duration_ms("unique_for_ms", unique_for_ms)


def _ids_of(jobs: Sequence[JobSpec], now_ms: int) -> list[str]:
    fresh_ids = new_job_ids(len(jobs), now_ms)
    return [spec.get("job_id") or one for spec, one in zip(jobs, fresh_ids, strict=True)]


def _spell_all(
    jobs: Sequence[JobSpec], places: Sequence[int], spell: Spell[T], now_ms: int
) -> list[T]:
    spelled: list[T] = []
    for at, fresh_id in zip(places, new_job_ids(len(places), now_ms), strict=True):
        try:
            spelled.append(spell(jobs[at], fresh_id, now_ms))
        except (SettingsError, WireError) as error:
            error.args = (f"jobs[{at}]: {error}",)
            raise
        except KeyError as missing:
            what, found = f"jobs[{at}]", sorted(map(str, jobs[at]))
            rule = f"a mapping with {missing.args[0]!r}"
            raise SettingsError(what, found, rule) from None
    return spelled


def _check_mappings(jobs: Sequence[JobSpec]) -> None:
    # Callers lie.
    is_list = isinstance(jobs, Sequence)  # pyright: ignore[reportUnnecessaryIsInstance]
    if not is_list or isinstance(jobs, str | bytes):
        raise SettingsError("jobs", type(jobs).__name__, "a list of mappings")
    if {type(spec) for spec in jobs} <= {dict}:
        return
    for at, spec in enumerate(jobs):
        if not isinstance(spec, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SettingsError(f"jobs[{at}]", spec, "a mapping with at least name and data")


def _check_on_conflict(on_conflict: OnConflict) -> None:
    if on_conflict not in ("keep", "raise"):
        raise SettingsError("on_conflict", on_conflict, '"keep" or "raise"')


def _tell_duplicates(jobs: Sequence[Job], marks: Sequence[AddMark]) -> None:
    if marks.count(ADDED) == len(marks):
        return
    for job, mark in zip(jobs, marks, strict=True):
        job.is_duplicate = mark is not ADDED


def _raise_conflicts(
    on_conflict: OnConflict, jobs: Sequence[NewJob], marks: Sequence[AddMark]
) -> None:
    if on_conflict == "keep" or AddMark.CONFLICT not in marks:
        return
    pairs = zip(jobs, marks, strict=True)
    raise IdConflict([job.job_id for job, mark in pairs if mark is AddMark.CONFLICT])


class Queue(Adding, Repeating, Cancelling, Resulting, DeadLetters, Finding):
    """One queue, from the outside; connects when first used.

    Every method may be called from many tasks at once. After `close()` every call is refused.
    """
