"""A store whose adds have a span each, and whose jobs carry its name."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from chasquimq.model.durability import Durability
from chasquimq.settings import AbilitySettings, ConnectionSettings, ProducerSettings
from chasquimq.store.add_write import AddDeadline, AddMark
from chasquimq.store.producing import ProducerStore
from chasquimq.telemetry.tracing import Tracing
from chasquimq.wire.new_job import NewJob


class TracedStore(ProducerStore):
    """Takes the place of a plain store where tracing is on, so that it costs nothing where not."""

    def __init__(
        self,
        queue: str,
        connection: ConnectionSettings,
        settings: ProducerSettings,
        abilities: AbilitySettings,
        durability: Durability,
        tracing: Tracing,
    ) -> None:
        super().__init__(queue, connection, settings, abilities, durability)
        self._tracing = tracing

    async def add(
        self, job: NewJob, unique_ms: int, deadline: AddDeadline | None = None
    ) -> AddMark:
        with self._tracing.adding(self.queue, job_id=job.job_id, name=job.name) as extras:
            return await super().add(_carrying(job, extras), unique_ms, deadline)

    async def add_many(
        self, jobs: Sequence[NewJob], unique_ms: int, deadline: AddDeadline | None = None
    ) -> list[AddMark]:
        with self._tracing.adding(self.queue, batch_count=len(jobs)) as extras:
            traced = [_carrying(job, extras) for job in jobs]
            return await super().add_many(traced, unique_ms, deadline)


def _carrying(job: NewJob, extras: dict[str, str]) -> NewJob:
    # No span, no extras: the bytes stay those of the original.
    return replace(job, extras={**(job.extras or {}), **extras}) if extras else job
