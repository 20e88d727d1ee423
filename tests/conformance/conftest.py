"""The same steps on native commands and on their fallbacks."""

from __future__ import annotations

import pytest

from chasquimq.settings import AbilitySettings, ConnectionSettings, ReadSettings, ResultSettings
from chasquimq.store.consumer.store import ConsumerStore

FALLBACKS = AbilitySettings(ack_delete=False, claim_on_read=False, idempotent_add=False)
LEASE_MS = 30_000


@pytest.fixture(params=[AbilitySettings(), FALLBACKS], ids=["as probed", "fallbacks"])
def abilities(request) -> AbilitySettings:
    """What the server offers, and what every server has."""
    return request.param


@pytest.fixture
async def consumer(url, queue_name, abilities):
    """Open consumers of the test's queue; all are closed when the test ends."""
    opened = []

    async def open_one(name: str) -> ConsumerStore:
        store = ConsumerStore(
            queue_name, "default", name, ConnectionSettings(url=url), ReadSettings(),
            abilities, LEASE_MS, ResultSettings(),
        )  # fmt: skip
        await store.open()
        opened.append(store)
        return store

    yield open_one
    for store in opened:
        await store.close()
