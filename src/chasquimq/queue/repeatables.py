"""Plans jobs that repeat: checks what a plan says, and upserts, lists, fires and removes plans."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from chasquimq.errors import DecodeError, KindRefused, PreconditionFailed, SettingsError, StoreError
from chasquimq.job import Job
from chasquimq.model.job_options import JobOptions, whole_number
from chasquimq.model.schedule import Cron, Every, MissedFires, Pattern
from chasquimq.repeat import (
    MissedFiresPolicy,
    QuarantinedRepeatable,
    RepeatableMeta,
    RepeatPattern,
)
from chasquimq.store.inspect.pages import ReadStore
from chasquimq.store.net.errors import about, changes_nothing
from chasquimq.store.net.reconnect import Deadline
from chasquimq.store.producer.store import ProducerStore
from chasquimq.store.repeatables import ListedSpec, RepeatStore
from chasquimq.wire.keys import check_spec_key
from chasquimq.wire.new_job import JobSpec, NewJob, new_job_id, wall_ms
from chasquimq.wire.payload import decode_payload
from chasquimq.wire.repeat import Bounds, NewRepeat, encode_repeat

RepeatLike = RepeatPattern | Mapping[str, Any]
MissedFiresLike = MissedFiresPolicy | Mapping[str, Any]
# Options of a job that a plan has no use for: each fire is a job of its own.
_USELESS = ("job_id", "delay_ms", "delay", "expires_ms", "timeout_ms")


class Repeatables:
    """The plans of one queue; any running worker of the queue fires them."""

    def __init__(self, store: ProducerStore) -> None:
        self._store = store
        self._plans = RepeatStore(store, ReadStore(store.connection))

    async def upsert(self, plan: NewRepeat, deadline: Deadline) -> bool:
        """Write a plan; False: the same one was there."""
        with self._store.unconfirmed.taken(len(plan.spec)):
            try:
                return (await self._plans.upsert(plan, deadline)).was_written
            except StoreError as error:
                raise about(error, [plan.key]) from error.__cause__

    async def upsert_all(
        self, plans: Sequence[NewRepeat], add_timeout_ms: int | None
    ) -> list[bool]:
        """The same for many; an error names the keys of those that were not written."""
        written: list[bool] = []
        for plan in plans:
            try:
                upserted = await self._plans.upsert(plan, self._store.deadline(add_timeout_ms))
            except StoreError as error:
                raise about(error, [one.key for one in plans[len(written) :]]) from error.__cause__
            written.append(upserted.was_written)
        return written

    @changes_nothing
    async def listed(self, limit: int) -> list[RepeatableMeta]:
        """The plans that fire next, soonest first."""
        listed = await self._plans.listed(whole_number("limit", limit, 0))
        return [_meta(one) for one in listed]

    async def remove(self, key: str) -> bool:
        """End a plan; False: there was none."""
        return await self._plans.remove(check_spec_key(key))

    async def fire(self, key: str, unique_ms: int) -> tuple[NewJob, Any]:
        """Add one job of a plan at once; the job and its data."""
        stored = await changes_nothing(self._plans.stored)(check_spec_key(key))
        if stored is None:
            hint = "get_repeatable_jobs() lists the keys"
            raise PreconditionFailed("key", key, "the key of a repeatable job", hint=hint)
        now_ms, spec = wall_ms(), stored.spec
        job = NewJob(new_job_id(now_ms), spec.job_name, spec.payload, now_ms, stored.retry)
        await self._store.add(job, unique_ms)
        return job, _decoded(spec.payload)

    @changes_nothing
    async def quarantined(self, limit: int) -> list[QuarantinedRepeatable]:
        """Plans that could not fire and were put aside."""
        bad = await self._plans.bad(whole_number("limit", limit, 0))
        return [
            QuarantinedRepeatable(key, record.reason, record.spec, record.quarantined_at_ms)
            for key, record in bad
        ]


def new_plan(
    name: str,
    payload: bytes,
    options: JobOptions,
    key: str | None = None,
    bounds: Bounds | None = None,
) -> NewRepeat:
    """A plan from the options of a job that repeats, checked."""
    if options.repeat is None:
        raise _without_repeat(options.missed_fires)
    return encode_repeat(
        name, payload, _pattern(options.repeat), _policy(options.missed_fires),
        bounds or Bounds(), options.retry(), key,
    )  # fmt: skip


def refuse_with_repeat(options: JobOptions, **useless: object) -> None:
    """Refuse options that a plan has no use for."""
    for name, value in [*((name, getattr(options, name)) for name in _USELESS), *useless.items()]:
        if value is not None:
            hint = "each fire is a job of its own"
            raise SettingsError(name, value, "left out where a job repeats", hint=hint)


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


def _repeats(spec: JobSpec) -> bool:
    return spec.get("repeat") is not None or spec.get("missed_fires") is not None


def _without_repeat(missed_fires: object) -> SettingsError:
    return SettingsError("missed_fires", missed_fires, "given together with repeat")


def _pattern(repeat: RepeatLike) -> Pattern:
    given = RepeatPattern.from_dict(_dict_of("repeat", repeat, RepeatPattern, _pattern_for))
    if given.kind == "every":
        return Every(given.interval_ms)  # pyright: ignore[reportArgumentType]  it checks
    return Cron(given.expression, given.tz)  # pyright: ignore[reportArgumentType]  it checks


def _policy(missed_fires: MissedFiresLike | None) -> MissedFires:
    if missed_fires is None:
        return MissedFires.skip()
    given = _dict_of("missed_fires", missed_fires, MissedFiresPolicy, _policy_for)
    policy = MissedFiresPolicy.from_dict(given)
    # It checks what it is given.
    return MissedFires(policy.kind, policy.max_catchup)  # pyright: ignore[reportArgumentType]


def _pattern_for(value: Any) -> str:
    if isinstance(value, str):
        return f"RepeatPattern.cron({value!r:.100})"
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return f"RepeatPattern.every({value if is_number else 60_000})"


def _policy_for(value: Any) -> str:
    wanted = value.replace("-", "_") if isinstance(value, str) else ""
    calls = {"fire_once": "fire_once()", "fire_all": "fire_all(max_catchup=100)"}
    return f"MissedFiresPolicy.{calls.get(wanted, 'skip()')}"


def _dict_of(
    what: str, value: Any, kind: type, call_for: Callable[[Any], str]
) -> Mapping[str, Any]:
    if isinstance(value, kind):
        return value.to_dict()
    if isinstance(value, Mapping):
        return value  # pyright: ignore[reportUnknownVariableType]  its keys are checked next
    hint = f"for example {call_for(value)}"
    raise KindRefused(what, value, f"a {kind.__name__} or its dict form", hint=hint)


def _meta(one: ListedSpec) -> RepeatableMeta:
    spec = one.spec
    policy = MissedFiresPolicy(spec.missed_fires, spec.max_catchup)
    return RepeatableMeta(
        key=one.key,
        job_name=spec.job_name,
        pattern=RepeatPattern(spec.kind, spec.expression, spec.tz, spec.interval_ms),
        next_fire_ms=one.next_fire_ms,
        limit=spec.limit,
        start_after_ms=spec.start_after_ms,
        end_before_ms=spec.end_before_ms,
        missed_fires=None if policy.kind == "skip" else policy,
    )


def _decoded(payload: bytes) -> Any:
    try:
        return decode_payload(payload)
    except DecodeError:
        # Native producers may store any bytes; their consumers get them as they are.
        return payload
