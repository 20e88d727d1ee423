"""Leading: a lock that could not be given back is given back by the next try."""

from __future__ import annotations

import pytest

from chasquimq.engine.promoter import Leadership
from chasquimq.errors import ConnectionLost
from chasquimq.store.upkeep import Lead


class OneLock:
    """A lock on a server whose connection breaks under the first `breaks` releases."""

    def __init__(self, breaks: int = 0) -> None:
        self.holder: str | None = None
        self._breaks = breaks

    async def lead(self, holder: str, ttl_s: int) -> Lead:
        self.holder = self.holder or holder
        return Lead(self.holder == holder)

    async def release_lock(self, holder: str) -> bool:
        if self._breaks:
            self._breaks -= 1
            raise ConnectionLost("the link broke")
        was_ours = self.holder == holder
        self.holder = None if was_ours else self.holder
        return was_ours


async def test_a_release_under_which_the_link_broke_is_made_up_for_by_the_next():
    lock = OneLock(breaks=1)
    leadership = Leadership("promoter", lock, "me", 5, None)
    await leadership.hold()

    with pytest.raises(ConnectionLost):
        await leadership.release()
    await leadership.release()

    assert (lock.holder, leadership.is_held) == (None, False)


async def test_who_does_not_lead_releases_nothing():
    lock = OneLock()
    lock.holder = "other"
    leadership = Leadership("promoter", lock, "me", 5, None)
    await leadership.hold()

    await leadership.release()

    assert lock.holder == "other"
