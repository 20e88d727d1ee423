"""The finding part of a Queue."""

from __future__ import annotations

from chasquimq.model.job_state import JobState
from chasquimq.model.options import whole_number
from chasquimq.queue.opening import Opening
from chasquimq.store.finding import SCANNED_BYTES_MAX, FinderStore
from chasquimq.store.reading import ReadStore
from chasquimq.wire.names import check_job_id


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
