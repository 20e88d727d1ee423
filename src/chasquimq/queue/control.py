"""The finding part of a Queue."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from chasquimq.errors import KindRefused, SettingsError
from chasquimq.model.job_options import whole_number
from chasquimq.model.snapshot import JobState
from chasquimq.queue.connections import Opening
from chasquimq.settings import true_or_false
from chasquimq.store.drain import Cancelled, DelayedQuery, Drained, DrainStore
from chasquimq.store.inspect.find_job import SCANNED_BYTES_MAX, FinderStore
from chasquimq.store.inspect.pages import ReadStore
from chasquimq.wire.keys import check_job_id, check_job_ids


class Finding(Opening):
    """Tells where one job is."""

    async def get_job(
        self, job_id: str, *, max_scanned_bytes: int | None = SCANNED_BYTES_MAX
    ) -> JobState:
        """Where the job is right now.

        Ended jobs are known where their worker keeps outcomes (`store_results`), delayed ones
        by their index. Others are searched for, in 100,000 entries at most and in about
        `max_scanned_bytes` of them (0: not at all, None: in as many bytes as they have); an
        `unknown` whose `scanned_all` is False may still be there.
        """
        check_job_id(job_id)
        if max_scanned_bytes is not None:
            whole_number("max_scanned_bytes", max_scanned_bytes, 0)
        store = self._store()
        reads = ReadStore(store.link)
        finder = FinderStore(store.keys, reads)
        return await finder.find(job_id, bytes_max=max_scanned_bytes)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Cancelling(Opening):
    """Takes back what has not begun."""

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
        if limit is not None:
            whole_number("limit", limit, 0)
        query = DelayedQuery(
            name=_text("name", name), id_prefix=_text("id_prefix", id_prefix),
            due_after_ms=_instant_ms("due_after", due_after),
            due_before_ms=_instant_ms("due_before", due_before),
        )  # fmt: skip
        if query.is_open:
            hint = "give name, id_prefix, due_after or due_before, or call drain()"
            raise SettingsError(
                "cancel_delayed_where", "no filter", "told what to cancel", hint=hint
            )
        return await self._waiting().cancel(query, limit, is_dry=dry_run)

    async def drain(self, delayed: bool = True) -> Drained:
        """Remove every job that waits, delayed ones too unless `delayed=False`.

        Jobs that a worker holds go on, and so do plans and dead jobs. What is added meanwhile
        may stay. It goes page by page: called again after an error, it goes on. The ids of
        removed jobs are free again.
        """
        true_or_false("delayed", delayed)
        return await self._waiting().drain(delayed=delayed)

    def _waiting(self) -> DrainStore:
        store = self._store()
        return DrainStore(store, ReadStore(store.link))


def _text(what: str, value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise KindRefused(what, value, "a string")
    return value


def _instant_ms(what: str, instant: Any) -> int | None:
    if instant is None:
        return None
    if not isinstance(instant, datetime):
        raise KindRefused(what, instant, "a datetime", hint="one without a zone is taken as UTC")
    aware = instant if instant.tzinfo else instant.replace(tzinfo=UTC)
    return (aware - _EPOCH) // timedelta(milliseconds=1)
