"""Fetches the envelope of a job that was found, from wherever it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chasquimq.errors import DecodeError
from chasquimq.store.reading import DuePages, PageSize
from chasquimq.store.sighting import Sighting
from chasquimq.wire.delayed_member import split_member
from chasquimq.wire.stream_entry import first_values

if TYPE_CHECKING:
    from chasquimq.model.job_state import JobState
    from chasquimq.store.reading import ReadStore
    from chasquimq.wire.keys import QueueKeys


class JobBytes:
    """Reads one queue and moves nothing."""

    def __init__(self, keys: QueueKeys, reads: ReadStore) -> None:
        self._keys = keys
        self._reads = reads

    async def envelope(self, state: JobState) -> bytes | None:
        """The bytes of the job; None where it is there no more, or left nothing to read."""
        if state.state == "delayed":
            return await self._delayed(state)
        if state.entry_id is None:
            return None
        key = self._keys.dlq if state.state == "dead" else self._keys.stream
        (entries,) = await self._reads.ask(("XRANGE", key, state.entry_id, state.entry_id))
        return first_values(entries[0][1]).get(b"d") if entries else None

    async def _delayed(self, state: JobState) -> bytes | None:
        if state.due_ms is None:
            return None
        sighting = Sighting(state.job_id)
        pages = DuePages(self._reads, self._keys.delayed, PageSize(), state.due_ms)
        while (page := await pages.next()) is not None:
            for member, score in page:
                if sighting.in_delayed((member, score)) is not None:
                    return _envelope(member)
        return None


def _envelope(member: bytes) -> bytes | None:
    try:
        return split_member(member)[1]
    except DecodeError:
        return None
