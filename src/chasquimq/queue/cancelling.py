"""The cancelling part of a Queue."""

from __future__ import annotations

from collections.abc import Sequence

from chasquimq.queue.opening import Opening
from chasquimq.wire.names import check_job_ids


class Cancelling(Opening):
    """Takes back what is not due yet."""

    async def cancel_delayed(self, job_id: str) -> bool:
        """Remove a delayed job before it becomes due.

        True: the job will never run. False: nothing was there to remove, because the id is
        unknown, the job is running or done, or promotion came first.
        """
        return (await self.cancel_delayed_bulk([job_id]))[0]

    async def cancel_delayed_bulk(self, job_ids: Sequence[str]) -> list[bool]:
        """The same for many ids; the answers come in their order."""
        return await self._store().cancel(check_job_ids(job_ids))
