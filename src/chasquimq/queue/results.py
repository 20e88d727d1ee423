"""The results part of a Queue."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from numbers import Real
from typing import Any

from chasquimq.errors import JobFailed, ResultExpired, SettingsError
from chasquimq.queue.connections import Opening
from chasquimq.queue.result_watch import POLL_S_MAX, ResultWatch
from chasquimq.store.event_reader import EndTail
from chasquimq.store.results import Leftovers, ResultStore
from chasquimq.wire.keys import check_job_id, check_job_ids
from chasquimq.wire.outcome import COMPLETED, DEAD


class Resulting(Opening):
    """Reads what workers with `store_results` keep."""

    async def get_job_result(self, job_id: str) -> Any:
        """The stored return value, or None: not finished, failed, expired, or nothing kept."""
        return (await self.get_job_result_bulk([job_id]))[0]

    async def get_job_result_bulk(self, job_ids: Sequence[str]) -> list[Any]:
        """The same for many ids, in their order."""
        found = await self._result_store().leftovers(check_job_ids(job_ids))
        return [one.value() for one in found]

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
        _check_positive("timeout", timeout)
        _check_positive("poll_interval", poll_interval)
        watch = self._watch()
        waiter = watch.wait(check_job_id(job_id), min(poll_interval, POLL_S_MAX))
        try:
            async with asyncio.timeout(timeout):
                found = await waiter
        except TimeoutError:
            raise _not_seen(job_id, timeout, watch.trouble) from None
        return _value(job_id, found)

    def _result_store(self) -> ResultStore:
        return ResultStore(self.name, self._store().link)

    def _watch(self) -> ResultWatch:
        parts = self._parts()
        if parts.watch is None:
            tail = partial(EndTail, self.name, parts.connection)
            parts.watch = ResultWatch(self._result_store(), tail)
        return parts.watch


def _not_seen(job_id: str, timeout_s: float, trouble: str) -> TimeoutError:
    hint = "does its worker run with store_results=True?"
    if trouble:
        hint = f"the server could not be asked: {trouble.rstrip('.')}; is it running?"
    return TimeoutError(
        f"job {job_id!r} must end within {timeout_s:g} s and was not seen to; {hint}"
    )


def _value(job_id: str, found: Leftovers) -> Any:
    outcome = found.outcome
    if outcome is not None and outcome.status == DEAD:
        raise JobFailed(job_id, outcome.reason, outcome.error)
    is_expired = outcome is not None and outcome.status == COMPLETED and outcome.has_result
    if is_expired and found.result is None:
        raise ResultExpired(
            f"the result of job {job_id!r} must be read before it expires and is gone; "
            "wait sooner, or raise result_ttl_ms"
        )
    return found.value()


def _check_positive(name: str, value: float) -> None:
    if not isinstance(value, Real) or not value > 0:
        raise SettingsError(name, value, "a number of seconds above 0")
