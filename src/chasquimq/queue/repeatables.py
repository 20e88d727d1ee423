"""The repeating part of a Queue."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from chasquimq.errors import DecodeError, KindRefused, PreconditionFailed, SettingsError, StoreError
from chasquimq.job import Job
from chasquimq.model.job_options import BackoffLike, retry_override, whole_number
from chasquimq.model.schedule import Cron, Every, MissedFires, Pattern
from chasquimq.queue.connections import Opening
from chasquimq.repeat import (
    MissedFiresPolicy,
    QuarantinedRepeatable,
    RepeatableMeta,
    RepeatPattern,
)
from chasquimq.store.inspect.pages import ReadStore
from chasquimq.store.net.clock import wall_ms
from chasquimq.store.net.errors import about
from chasquimq.store.repeatables import ListedSpec, RepeatStore
from chasquimq.wire.keys import check_spec_key
from chasquimq.wire.new_job import NewJob, new_job_id
from chasquimq.wire.payload import decode_payload
from chasquimq.wire.repeat import Bounds, NewRepeat, encode_repeat

RepeatLike = RepeatPattern | Mapping[str, Any]
MissedFiresLike = MissedFiresPolicy | Mapping[str, Any]


class Repeating(Opening):
    """Plans jobs that come again and again; any running worker of the queue fires them."""

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
        bounds = Bounds(limit=limit, start_after_ms=start_after_ms, end_before_ms=end_before_ms)
        store = self._store()
        deadline = await self._begin_add(store, add_timeout_ms, [key] if key else [])
        new = self._new_plan(name, data, repeat, missed_fires, attempts, backoff, key, bounds)
        with store.unconfirmed.taken(len(new.spec)):
            try:
                upserted = await self._repeats().upsert(new, deadline)
            except StoreError as error:
                raise about(error, [new.key]) from error.__cause__
        return Job(new.key, name, data, 0, wall_ms(), self, not upserted.was_written)

    async def get_repeatable_jobs(self, limit: int = 100) -> list[RepeatableMeta]:
        """The plans that fire next, soonest first; those that cannot be read are left out."""
        listed = await self._repeats().listed(whole_number("limit", limit, 0))
        return [_meta(one) for one in listed]

    async def remove_repeatable_by_key(self, key: str) -> bool:
        """End a plan; jobs it has fired are not touched.

        True: it will not fire again. False: there was none under that key.
        """
        return await self._repeats().remove(check_spec_key(key))

    async def run_repeatable_now(self, key: str) -> Job:
        """Add one job of a plan at once; its next fire, its limit and its count stay.

        Raises:
            SettingsError: there is no plan under that key.
            DecodeError: what is stored there can never fire.
        """
        stored = await self._repeats().stored(check_spec_key(key))
        if stored is None:
            hint = "get_repeatable_jobs() lists the keys"
            raise PreconditionFailed("key", key, "the key of a repeatable job", hint=hint)
        now_ms = wall_ms()
        job_id = new_job_id(now_ms)
        job = NewJob(job_id, stored.spec.job_name, stored.spec.payload, now_ms, stored.retry)
        await self._store().add(job, self._settings.unique_for_ms)
        return Job(job_id, job.name, _decoded(stored.spec.payload), 0, now_ms, self)

    async def quarantined_repeatables(self, limit: int = 100) -> list[QuarantinedRepeatable]:
        """Plans that could not fire and were put aside; an upsert or a removal clears them."""
        bad = await self._repeats().bad(whole_number("limit", limit, 0))
        return [
            QuarantinedRepeatable(key, record.reason, record.spec, record.quarantined_at_ms)
            for key, record in bad
        ]

    def _new_plan(
        self,
        name: str,
        data: Any,
        repeat: RepeatLike | None,
        missed_fires: MissedFiresLike | None,
        attempts: int | None,
        backoff: float | BackoffLike | Mapping[str, Any] | None,
        key: str | None = None,
        bounds: Bounds | None = None,
    ) -> NewRepeat:
        if repeat is None:
            raise _without_repeat(missed_fires)
        return encode_repeat(
            name, self._encoder().payload(data), _pattern(repeat), _policy(missed_fires),
            bounds or Bounds(), retry_override(attempts, backoff), key,
        )  # fmt: skip

    async def _add_repeating(
        self,
        name: str,
        data: Any,
        repeat: RepeatLike | None,
        missed_fires: MissedFiresLike | None,
        attempts: int | None,
        backoff: float | BackoffLike | Mapping[str, Any] | None,
        key: str | None = None,
        add_timeout_ms: int | None = None,
    ) -> Job:
        if repeat is None:
            raise _without_repeat(missed_fires)
        return await self.upsert_repeatable_job(
            name, data, repeat=repeat, missed_fires=missed_fires,
            attempts=attempts, backoff=backoff, key=key, add_timeout_ms=add_timeout_ms,
        )  # fmt: skip

    def _repeats(self) -> RepeatStore:
        store = self._store()
        return RepeatStore(store, ReadStore(store.link))


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
