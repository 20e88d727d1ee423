"""The finding part of a Queue."""

from __future__ import annotations

from chasquimq.model.job_state import JobState
from chasquimq.queue.opening import Opening
from chasquimq.store.finding import FinderStore
from chasquimq.store.reading import ReadStore
from chasquimq.wire.names import check_job_id


class Finding(Opening):
    """Tells where one job is."""

    async def get_job(self, job_id: str) -> JobState:
        """Where the job is right now.

        Ended jobs are known where their worker keeps outcomes (`store_results`), delayed ones
        by their index. Others are searched for, through 100,000 entries at most; an `unknown`
        whose `scanned_all` is False may still be there.
        """
        check_job_id(job_id)
        store = self._store()
        reads = ReadStore(store.link, self._settings.resend_within_ms)
        return await FinderStore(store.keys, reads).find(job_id)
