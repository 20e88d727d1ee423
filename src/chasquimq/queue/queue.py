"""Adds jobs, looks at what became of them, and puts right what went wrong: the class Queue."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, Self, Unpack

from chasquimq.errors import IdConflict, SettingsError
from chasquimq.job import Job
from chasquimq.model.job_options import (
    NO_OPTIONS,
    BackoffLike,
    JobOptions,
    duration_ms,
    optional_ms,
    parse_durability,
    refuse_unknown,
    shows_options,
)
from chasquimq.model.snapshot import JobState
from chasquimq.queue.connections import Connections, DurabilityLike, QueueOptions, begin_add
from chasquimq.queue.control import (
    cancel_where,
    count_jobs,
    delayed_query,
    drain,
    find_job,
    read_results,
)
from chasquimq.queue.dlq import DeadLetter, Dlq
from chasquimq.queue.repeatables import (
    MissedFiresLike,
    Repeatables,
    RepeatLike,
    in_order,
    new_plan,
    plain_in,
    plans_in,
    refuse_with_repeat,
)
from chasquimq.queue.results import wait_for_value
from chasquimq.repeat import QuarantinedRepeatable, RepeatableMeta
from chasquimq.settings import (
    AbilitySettings,
    CredentialProvider,
    ProducerSettings,
    filled,
)
from chasquimq.store.dlq import DlqQuery, Imported, Replayed
from chasquimq.store.drain import Cancelled, Drained
from chasquimq.store.inspect.find_job import SCANNED_BYTES_MAX
from chasquimq.store.inspect.queue import Counts
from chasquimq.store.net.address import connection_settings
from chasquimq.store.producer.store import ProducerStore
from chasquimq.store.producer.writes import ADDED, AddMark
from chasquimq.telemetry.tracing import Tracing, tracing_of
from chasquimq.wire.keys import check_job_ids, check_queue_name
from chasquimq.wire.new_job import (
    JobEncoder,
    JobSpec,
    NewJob,
    check_mappings,
    encode_all,
    ids_of,
    new_job_id,
    wall_ms,
)
from chasquimq.wire.payload import encode_payload
from chasquimq.wire.repeat import Bounds, NewRepeat

OnConflict = Literal["keep", "raise"]
DelayMsLike = int | float | datetime
DelayLike = DelayMsLike


class Queue:
    """One queue, from the outside; connects when first used.

    Every method may be called from many tasks at once. After `close()` every call is refused.
    """

    # How data becomes bytes.
    _encode: Callable[[Any], bytes] = staticmethod(encode_payload)

    @shows_options(QueueOptions, resend=True, events_enabled=False)
    def __init__(
        self,
        name: str,
        *,
        redis_url: str | None = None,
        tls: bool = False,
        insecure_tls: bool = False,
        credential_provider: CredentialProvider | None = None,
        command_timeout_ms: int | None = None,
        producer: ProducerSettings | None = None,
        durability: DurabilityLike | None = None,
        tracing: bool | Tracing = False,
        abilities: AbilitySettings | None = None,
        **options: Unpack[QueueOptions],
    ) -> None:
        """A keyword that stands for a field of `producer` may be given instead of the group.

        Raises:
            SettingsError: a value is refused, or a keyword and `producer` say the same field.
            TypeError: there is no such keyword.
        """
        refuse_unknown(Queue, options, QueueOptions, {"producer": ProducerSettings}, {})
        self._name = check_queue_name(name)
        fields = {key: key for key in QueueOptions.__annotations__}
        self._settings = filled(ProducerSettings, "producer", producer, options, **fields)
        connection = connection_settings(
            redis_url, tls=tls, insecure_tls=insecure_tls, queue=self._name,
            credential_provider=credential_provider,
            command_timeout_ms=optional_ms("command_timeout_ms", command_timeout_ms),
        )  # fmt: skip
        self._connections = Connections(
            self._name, connection, self._settings,
            abilities=abilities or AbilitySettings(),
            durability=parse_durability(durability),
            tracing=tracing_of(tracing),
        )  # fmt: skip
        self._encoder = JobEncoder(
            self._settings.max_payload_bytes, self._settings.max_delay_secs, self._encode
        )

    @property
    def name(self) -> str:
        return self._name

    @property
    def is_closed(self) -> bool:
        return self._connections.is_closed

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections of all event loops.

        A closed queue refuses every further call, and calls that wait for a result fail.
        """
        await self._connections.close()

    # ── add jobs ─────────────────────────────────────────────────────────────────────────────

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
            ConnectionLost: it was not confirmed in time; `outcome` says whether it may be added.
            DurabilityNotMet: it is written, but not as safely as `durability` asks.
        """
        asked = (
            delay_ms, delay, attempts, backoff, job_id, expires_ms, timeout_ms, repeat, missed_fires
        )  # fmt: skip
        options = None
        if asked != NO_OPTIONS:
            options = JobOptions(*asked)
            if options.is_plan:
                return await self._add_plan(
                    name, data, options, None, add_timeout_ms,
                    unique_for_ms=unique_for_ms, durability=durability, on_conflict=on_conflict,
                )  # fmt: skip
        now_ms, unique_ms = wall_ms(), self._settings.unique_for_ms
        if unique_for_ms is not None:
            unique_ms = duration_ms("unique_for_ms", unique_for_ms)
        if on_conflict != "keep":
            _check_on_conflict(on_conflict)
        store, deadline = self._connections.store(durability), None
        fresh_id = new_job_id(now_ms)
        if add_timeout_ms is not None or store.unconfirmed.is_full:
            own_id = None if options is None else options.job_id
            deadline = await begin_add(store, add_timeout_ms, [own_id or fresh_id])
        if options is None:
            new = self._encoder.plain(name, data, fresh_id, now_ms)
        else:
            new = self._encoder.with_options(name, data, options, fresh_id, now_ms)
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
        options = JobOptions(
            delay_ms, delay, attempts, backoff, None, expires_ms, timeout_ms, repeat, missed_fires
        )  # fmt: skip
        call: dict[str, Any] = {
            "unique_for_ms": unique_for_ms, "durability": durability, "on_conflict": on_conflict,
        }  # fmt: skip
        if options.is_plan:
            return await self._add_plan(name, data, options, job_id, add_timeout_ms, **call)
        return await self.add(
            name, data, job_id=job_id, add_timeout_ms=add_timeout_ms, **options.given(), **call
        )

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
        check_mappings(jobs)
        store, deadline = self._store(durability), None
        if add_timeout_ms is not None or store.unconfirmed.is_full:
            deadline = await begin_add(store, add_timeout_ms, ids_of(jobs, now_ms))
        repeating = plans_in(jobs)
        plain = plain_in(jobs, repeating)
        plans = encode_all(jobs, repeating, self._plan_of, now_ms)
        new = self._new_jobs(jobs, plain, now_ms)
        data = [jobs[at]["data"] for at in plain]
        adding = store.add_many(new, unique_ms, deadline) if new else None
        done = [
            Job(one.job_id, one.name, value, 0, now_ms, self)
            for one, value in zip(new, data, strict=True)
        ]
        marks = await adding if adding else []
        _raise_conflicts(on_conflict, new, marks)
        _mark_duplicates(done, marks)
        if not plans:
            return done
        specs = [jobs[at] for at in repeating]
        planned = await self._write_plans(plans, specs, now_ms, add_timeout_ms)
        return in_order(zip(plain, done, strict=True), zip(repeating, planned, strict=True))

    @property
    def unconfirmed_bytes(self) -> int:
        """How many bytes of encoded jobs the server has not confirmed yet."""
        return sum(store.unconfirmed.size for store in self._connections.all_stores())

    @property
    def events_dropped_count(self) -> int:
        """How many `delayed` events of `events_enabled` are missing in the events stream."""
        return self._connections.events_dropped_count

    @property
    def events_unproven_count(self) -> int:
        """How many more may be missing, because the connection broke before they were confirmed."""
        return self._connections.events_unproven_count

    # ── take back what has not begun ─────────────────────────────────────────────────────────

    async def cancel_delayed(self, job_id: str) -> bool:
        """Remove a delayed job before it becomes due.

        True: the job will never run. False: nothing was there to remove, because the id is
        unknown, the job is running or done, or promotion came first.
        """
        return (await self.cancel_delayed_bulk([job_id]))[0]

    async def cancel_delayed_bulk(self, job_ids: Sequence[str]) -> list[bool]:
        """The same for many ids; the answers come in their order."""
        return await self._store().cancel(check_job_ids(job_ids))

    async def cancel_delayed_where(
        self,
        *,
        name: str | None = None,
        id_prefix: str | None = None,
        due_after: datetime | None = None,
        due_before: datetime | None = None,
        limit: int | None = None,
        dry_run: bool = False,
    ) -> Cancelled:
        """Remove the delayed jobs that match every filter, soonest first, retries included.

        `due_after` is the first moment that is meant, `due_before` the first one that is not; a
        datetime without a zone is UTC. It goes page by page: called again after an error, it
        goes on. The ids of removed jobs are free again.

        Raises:
            SettingsError: there is no filter; `drain` removes all that wait.
        """
        query = delayed_query(name, id_prefix, due_after, due_before)
        return await cancel_where(self._store(), query, limit, dry_run=dry_run)

    async def drain(self, delayed: bool = True) -> Drained:
        """Remove every job that waits, delayed ones too unless `delayed=False`.

        Jobs that a worker holds go on, and so do plans and dead jobs. What is added meanwhile
        may stay. It goes page by page: called again after an error, it goes on. The ids of
        removed jobs are free again.
        """
        return await drain(self._store(), delayed=delayed)

    # ── plan jobs that repeat ────────────────────────────────────────────────────────────────

    async def upsert_repeatable_job(
        self,
        name: str,
        data: Any,
        *,
        repeat: RepeatLike,
        limit: int | None = None,
        start_after_ms: int | None = None,
        end_before_ms: int | None = None,
        attempts: int | None = None,
        backoff: float | BackoffLike | Mapping[str, Any] | None = None,
        job_id: str | None = None,
        missed_fires: MissedFiresLike | None = None,
        key: str | None = None,
        add_timeout_ms: int | None = None,
    ) -> Job:
        """Plan a job that repeats; the returned job's id is the key of the plan.

        Without a `key` the plan is known by name and pattern. The same plan again changes
        nothing (`is_duplicate`); a different one under the same key replaces it, with a new
        first fire and its fires counted from 0. `attempts` and `backoff` are for each fire.
        All of it takes at most `add_timeout_ms`, as an add does.

        Raises:
            SettingsError, EncodeError, PayloadTooLarge: refused before anything was written.
        """
        if job_id is not None:
            rule = "left out where a job repeats, because each fire has an id of its own"
            raise SettingsError("job_id", job_id, rule, hint="name the plan with key=")
        options = JobOptions(
            attempts=attempts, backoff=backoff, repeat=repeat, missed_fires=missed_fires
        )
        bounds = Bounds(limit=limit, start_after_ms=start_after_ms, end_before_ms=end_before_ms)
        return await self._plan(name, data, options, key, bounds, add_timeout_ms)

    async def get_repeatable_jobs(self, limit: int = 100) -> list[RepeatableMeta]:
        """The plans that fire next, soonest first; those that cannot be read are left out."""
        return await Repeatables(self._store()).listed(limit)

    async def remove_repeatable_by_key(self, key: str) -> bool:
        """End a plan; jobs it has fired are not touched.

        True: it will not fire again. False: there was none under that key.
        """
        return await Repeatables(self._store()).remove(key)

    async def run_repeatable_now(self, key: str) -> Job:
        """Add one job of a plan at once; its next fire, its limit and its count stay.

        Raises:
            SettingsError: there is no plan under that key.
            DecodeError: what is stored there can never fire.
        """
        plans = Repeatables(self._store())
        new, data = await plans.fire(key, self._settings.unique_for_ms)
        return Job(new.job_id, new.name, data, 0, new.created_at_ms, self)

    async def quarantined_repeatables(self, limit: int = 100) -> list[QuarantinedRepeatable]:
        """Plans that could not fire and were put aside; an upsert or a removal clears them."""
        return await Repeatables(self._store()).quarantined(limit)

    # ── look at jobs and their results ───────────────────────────────────────────────────────

    async def counts(self) -> Counts:
        """How many jobs are ready, running, delayed and dead."""
        return await count_jobs(self._store())

    async def get_job(
        self, job_id: str, *, max_scanned_bytes: int | None = SCANNED_BYTES_MAX
    ) -> JobState:
        """Where the job is right now.

        Ended jobs are known where their worker keeps outcomes (`store_results`), delayed ones
        by their index. Others are searched for, in 100,000 entries at most and in about
        `max_scanned_bytes` of them (0: not at all, None: in as many bytes as they have); an
        `unknown` whose `scanned_all` is False may still be there.
        """
        return await find_job(self._store(), job_id, max_scanned_bytes)

    async def get_job_result(self, job_id: str) -> Any:
        """The stored return value, or None: not finished, failed, expired, or nothing kept."""
        return (await self.get_job_result_bulk([job_id]))[0]

    async def get_job_result_bulk(self, job_ids: Sequence[str]) -> list[Any]:
        """The same for many ids, in their order."""
        return [one.value() for one in await read_results(self._store(), job_ids)]

    async def wait_for_result(
        self, job_id: str, *, timeout: float = 30.0, poll_interval: float = 0.1
    ) -> Any:
        """Wait until the job has ended and return what its handler returned.

        Raises:
            JobFailed: it ended in the DLQ. This and ResultExpired are TimeoutErrors, too.
            StoreError: the queue is closed, or was closed meanwhile, or no server was ever reached.
            ResultExpired: it completed, but its result is kept no more.
            TimeoutError: its end was not seen in time; is `store_results` on?
        """
        watch = self._connections.result_watch()
        return await wait_for_value(watch, job_id, timeout, poll_interval)

    # ── put dead jobs right ──────────────────────────────────────────────────────────────────

    async def peek_dlq(
        self,
        limit: int = 20,
        *,
        after: str | None = None,
        name: str | None = None,
        reason: str | None = None,
        fingerprint: str | None = None,
    ) -> list[DeadLetter]:
        """The oldest entries that match every filter; nothing moves.

        `after` is the `dlq_id` of the last entry already seen.
        """
        query = DlqQuery(name=name, reason=reason, fingerprint=fingerprint)
        return await self._dlq().peek(query, limit, after)

    async def replay_dlq(
        self,
        limit: int = 100,
        *,
        ids: Sequence[str] | None = None,
        name: str | None = None,
        reason: str | None = None,
        fingerprint: str | None = None,
        max_rate: float | None = None,
        edit: Callable[[Any], Any] | None = None,
        dry_run: bool = False,
    ) -> Replayed:
        """Send the oldest matching jobs back to the queue, as their next generation.

        Attempts start again from 0; creation time, retry options and name are kept. Entries
        that cannot be decoded stay where they are and are counted as `skipped`, jobs that die
        again meanwhile are not replayed twice. `max_rate` is in jobs per second. `edit` takes
        the data of a job and returns what it shall be from now on. What it refuses with
        `EditRefused` stays in the DLQ, and so does what it makes too large or impossible to
        encode (`refused` of the answer); if it raises anything else, the replay ends there.
        """
        query = DlqQuery(ids=ids, name=name, reason=reason, fingerprint=fingerprint)
        return await self._dlq().replay(query, limit, max_rate=max_rate, edit=edit, dry_run=dry_run)

    async def purge_dlq(
        self,
        *,
        ids: Sequence[str] | None = None,
        name: str | None = None,
        reason: str | None = None,
        fingerprint: str | None = None,
        older_than_ms: int | None = None,
        all: bool = False,
    ) -> int:
        """Delete the matching entries for good and return how many there were.

        Raises:
            SettingsError: neither a filter nor `all=True` says what to delete, or both do.
        """
        query = DlqQuery(ids=ids, name=name, reason=reason, fingerprint=fingerprint)
        return await self._dlq().purge(query, older_than_ms, all=all)

    async def import_dlq(
        self, letters: Iterable[Mapping[str, Any]], *, as_jobs: bool = False, dry_run: bool = False
    ) -> Imported:
        """Add dead jobs that `peek_dlq` or `chasqui dlq export` gave, with the bytes they had.

        They become dead jobs of this queue, or with `as_jobs` jobs that run again with all their
        attempts. One that is still in the DLQ, or was imported in the last 24 hours, is not added
        again, so a call that was cut off may be repeated. All are checked before the first is
        added. With `dry_run` nothing is added, and the answer only says how many are known.

        Raises:
            SettingsError: one of them is no dead job; the message says which and why.
        """
        return await self._dlq().import_all(letters, as_jobs=as_jobs, dry_run=dry_run)

    # ── the work behind it ───────────────────────────────────────────────────────────────────

    def _store(self, durability: DurabilityLike | None = None) -> ProducerStore:
        return self._connections.store(durability)

    def _dlq(self) -> Dlq:
        return Dlq(self._store(), self._settings.max_payload_bytes)

    async def _add_plan(
        self,
        name: str,
        data: Any,
        options: JobOptions,
        key: str | None,
        add_timeout_ms: int | None,
        **call: Any,
    ) -> Job:
        """Plan a job that was added with `repeat`; `call` is what else its add was given."""
        on_conflict = None if call["on_conflict"] == "keep" else call["on_conflict"]
        refuse_with_repeat(options, **{**call, "on_conflict": on_conflict})
        return await self._plan(name, data, options, key, None, add_timeout_ms)

    def _unique_ms(self, unique_for_ms: int | None) -> int:
        if unique_for_ms is None:
            return self._settings.unique_for_ms
        return duration_ms("unique_for_ms", unique_for_ms)

    def _new_jobs(
        self, jobs: Sequence[JobSpec], places: Sequence[int], now_ms: int
    ) -> list[NewJob]:
        # Nearly every bulk is made of plain names and data; the slow way finds who is not.
        new = self._encoder.all_plain(jobs, now_ms) if len(places) == len(jobs) else None
        return encode_all(jobs, places, self._encoder.encode, now_ms) if new is None else new

    async def _plan(
        self,
        name: str,
        data: Any,
        options: JobOptions,
        key: str | None,
        bounds: Bounds | None,
        add_timeout_ms: int | None,
    ) -> Job:
        store = self._store()
        deadline = await begin_add(store, add_timeout_ms, [key] if key else [])
        plan = new_plan(name, self._encoder.payload(data), options, key, bounds)
        is_written = await Repeatables(store).upsert(plan, deadline)
        return Job(plan.key, name, data, 0, wall_ms(), self, not is_written)

    def _plan_of(self, spec: JobSpec, _fresh_id: str, now_ms: int) -> NewRepeat:
        options = JobOptions.of(spec)
        refuse_with_repeat(options)
        plan = new_plan(spec["name"], self._encoder.payload(spec["data"]), options)
        # The server's clock decides the first fire; whether there is one shows here already.
        plan.first_fire_ms(now_ms)
        return plan

    async def _write_plans(
        self, plans: list[NewRepeat], specs: list[JobSpec], now_ms: int, add_timeout_ms: int | None
    ) -> list[Job]:
        written = await Repeatables(self._store()).upsert_all(plans, add_timeout_ms)
        return [
            Job(plan.key, spec["name"], spec["data"], 0, now_ms, self, not is_written)
            for plan, spec, is_written in zip(plans, specs, written, strict=True)
        ]


def _check_on_conflict(on_conflict: OnConflict) -> None:
    if on_conflict not in ("keep", "raise"):
        raise SettingsError("on_conflict", on_conflict, '"keep" or "raise"')


def _mark_duplicates(jobs: Sequence[Job], marks: Sequence[AddMark]) -> None:
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
