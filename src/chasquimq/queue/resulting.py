"""The results part of a Queue."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from chasquimq.errors import JobFailed, ResultExpired, SettingsError, StoreError
from chasquimq.queue.opening import Opening
from chasquimq.store.results import Leftovers, ResultStore
from chasquimq.wire.names import check_job_id
from chasquimq.wire.outcome import COMPLETED, DEAD

_POLL_S_MAX = 0.25


class Resulting(Opening):
    """Reads what workers with `store_results` keep."""

    async def get_job_result(self, job_id: str) -> Any:
        """The stored return value, or None: not finished, failed, expired, or nothing kept."""
        return (await self.get_job_result_bulk([job_id]))[0]

    async def get_job_result_bulk(self, job_ids: Sequence[str]) -> list[Any]:
        """The same for many ids, in their order."""
        ids = [check_job_id(job_id) for job_id in job_ids]
        return [one.value() for one in await self._result_store().leftovers(ids)]

    async def wait_for_result(
        self, job_id: str, *, timeout: float = 30.0, poll_interval: float = 0.1
    ) -> Any:
        """Wait until the job has ended and return what its handler returned.

        Raises:
            JobFailed: it ended in the DLQ.
            ResultExpired: it completed, but its result is kept no more.
            TimeoutError: its end was not seen in time; is `store_results` on?
        """
        _check_positive("timeout", timeout)
        _check_positive("poll_interval", poll_interval)
        waiter = self._watch().wait(check_job_id(job_id), min(poll_interval, _POLL_S_MAX))
        try:
            async with asyncio.timeout(timeout):
                return _value(job_id, await waiter)
        except TimeoutError:
            raise TimeoutError(
                f"job {job_id!r} must end within {timeout:g} s and was not seen to; "
                "does its worker run with store_results=True?"
            ) from None

    def _result_store(self) -> ResultStore:
        return ResultStore(self.name, self._store().link)

    def _watch(self) -> ResultWatch:
        if self._known_watch is None:
            self._known_watch = ResultWatch(self._result_store())
        return self._known_watch

    _known_watch: ResultWatch | None = None


class ResultWatch:
    """Everyone who waits, served by one poll."""

    def __init__(self, store: ResultStore) -> None:
        self._store = store
        self._waiting: dict[str, list[asyncio.Future[Leftovers]]] = {}
        self._polling: asyncio.Task[None] | None = None
        self._poll_s = _POLL_S_MAX

    def wait(self, job_id: str, poll_s: float) -> asyncio.Future[Leftovers]:
        """What is left of the job, as soon as it has ended."""
        future: asyncio.Future[Leftovers] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(job_id, []).append(future)
        self._poll_s = min(self._poll_s, poll_s)
        if self._polling is None or self._polling.done():
            self._poll_s = poll_s
            self._polling = asyncio.create_task(self._poll(), name="chasqui-results")
        return future

    async def _poll(self) -> None:
        while self._waiting:
            try:
                await self._look()
            except StoreError as error:
                if not self._store.may_heal(error):
                    self._fail(error)
                    return
            await asyncio.sleep(self._poll_s)

    async def _look(self) -> None:
        self._forget_the_gone()
        job_ids = list(self._waiting)
        for job_id, found in zip(job_ids, await self._store.leftovers(job_ids), strict=True):
            if found.outcome is None and found.result is None:
                continue
            for future in self._waiting.pop(job_id, []):
                if not future.done():
                    future.set_result(found)

    def _forget_the_gone(self) -> None:
        for job_id, futures in list(self._waiting.items()):
            if all(future.done() for future in futures):
                del self._waiting[job_id]

    def _fail(self, error: StoreError) -> None:
        waiting, self._waiting = self._waiting, {}
        for futures in waiting.values():
            for future in futures:
                if not future.done():
                    future.set_exception(error)


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
    if not value > 0:
        raise SettingsError(name, value, "above 0")
