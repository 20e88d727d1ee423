"""The plans of a bulk: jobs in it that repeat, checked with the others and written after them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from chasquimq.errors import SettingsError, StoreError
from chasquimq.job import Job
from chasquimq.queue.repeating import Repeating
from chasquimq.store.server_errors import about
from chasquimq.wire.new_job import JobSpec, check_keys
from chasquimq.wire.new_repeat import NewRepeat

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
