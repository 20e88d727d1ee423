"""Finds and counts jobs, and takes back those that have not begun."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from chasquimq.errors import KindRefused, SettingsError
from chasquimq.model.job_options import whole_number
from chasquimq.model.snapshot import JobState
from chasquimq.settings import true_or_false
from chasquimq.store.drain import Cancelled, DelayedQuery, Drained, DrainStore
from chasquimq.store.inspect.find_job import FinderStore
from chasquimq.store.inspect.pages import ReadStore
from chasquimq.store.inspect.queue import Counts, InspectorStore
from chasquimq.store.net.errors import changes_nothing
from chasquimq.store.producer.store import ProducerStore
from chasquimq.store.results import Leftovers, ResultStore
from chasquimq.wire.keys import check_job_id, check_job_ids

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@changes_nothing
async def count_jobs(store: ProducerStore) -> Counts:
    """How many jobs are where."""
    return await InspectorStore(store.queue, store.connection).counts()


@changes_nothing
async def read_results(store: ProducerStore, job_ids: Sequence[str]) -> list[Leftovers]:
    """What is left of each job, in the order of the ids."""
    return await ResultStore(store.queue, store.connection).leftovers(check_job_ids(job_ids))


@changes_nothing
async def find_job(store: ProducerStore, job_id: str, max_scanned_bytes: int | None) -> JobState:
    """Where one job is right now."""
    check_job_id(job_id)
    if max_scanned_bytes is not None:
        whole_number("max_scanned_bytes", max_scanned_bytes, 0)
    finder = FinderStore(store.keys, ReadStore(store.connection))
    return await finder.find(job_id, bytes_max=max_scanned_bytes)


async def cancel_where(
    store: ProducerStore, query: DelayedQuery, limit: int | None, *, dry_run: bool
) -> Cancelled:
    """Remove the delayed jobs that match."""
    if limit is not None:
        whole_number("limit", limit, 0)
    if query.is_open:
        hint = "give name, id_prefix, due_after or due_before, or call drain()"
        raise SettingsError("cancel_delayed_where", "no filter", "given a filter", hint=hint)
    cancel = DrainStore(store, ReadStore(store.connection)).cancel
    return await (changes_nothing(cancel) if dry_run else cancel)(query, limit, is_dry=dry_run)


async def drain(store: ProducerStore, *, delayed: bool) -> Drained:
    """Remove every job that waits."""
    true_or_false("delayed", delayed)
    return await DrainStore(store, ReadStore(store.connection)).drain(delayed=delayed)


def delayed_query(name: Any, id_prefix: Any, due_after: Any, due_before: Any) -> DelayedQuery:
    """Which delayed jobs are meant, checked."""
    return DelayedQuery(
        name=_text("name", name), id_prefix=_text("id_prefix", id_prefix),
        due_after_ms=_instant_ms("due_after", due_after),
        due_before_ms=_instant_ms("due_before", due_before),
    )  # fmt: skip


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
