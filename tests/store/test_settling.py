"""Moves settled in several calls: an error of one call hides no answer of another."""

from __future__ import annotations

import pytest

from chasquimq.errors import ScriptFailed, ServerRefused, StoreError
from chasquimq.model.delivery import Retrying, SettleResult
from chasquimq.settings import AbilitySettings, ConnectionSettings, ReadSettings, ResultSettings
from chasquimq.store.consumer.settle import PartlySettled
from chasquimq.store.consumer.store import ConsumerStore

DONE = SettleResult.DONE
CALL_MAX = 100
# The script refuses it, and with it every move of its call.
NO_TIME_MS = 2**60


@pytest.fixture
async def me(url, queue_name):
    store = ConsumerStore(
        queue_name, "default", "me", ConnectionSettings(url=url), ReadSettings(),
        AbilitySettings(), 30_000, ResultSettings(),
    )  # fmt: skip
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def retries(queue, me):
    """More moves than one call takes; those in `bad` cannot be done."""

    async def make(*bad: int) -> list[Retrying]:
        await queue.add_bulk([{"name": "n", "data": at} for at in range(CALL_MAX + 50)])
        deliveries = (await me.read(CALL_MAX + 50, 0)).deliveries
        waits = [NO_TIME_MS if at in bad else 0 for at in range(len(deliveries))]
        return [
            Retrying(one, after_ms, 1, None)
            for one, after_ms in zip(deliveries, waits, strict=True)
        ]

    return make


async def test_every_move_has_its_answer(me, retries):
    assert await me.retry(await retries()) == [DONE] * (CALL_MAX + 50)


@pytest.mark.parametrize(
    ("bad", "results"),
    [
        (7, [None] * CALL_MAX + [DONE] * 50),
        (CALL_MAX, [DONE] * CALL_MAX + [None] * 50),
    ],
    ids=["first call", "last call"],
)
async def test_an_error_of_one_call_hides_no_answer_of_another(me, retries, raw, bad, results):
    moves = await retries(bad)

    with pytest.raises(PartlySettled, match="delay_ms must be a time") as caught:
        await me.retry(moves)

    assert caught.value.results == results
    assert isinstance(caught.value.__cause__, ServerRefused)
    assert await raw("ZCARD", raw.keys.delayed) == results.count(DONE)


async def test_where_every_call_failed_the_error_is_the_servers_own(me, retries):
    moves = await retries(0, CALL_MAX)

    with pytest.raises(StoreError, match="delay_ms must be a time") as caught:
        await me.retry(moves)

    assert isinstance(caught.value, ServerRefused | ScriptFailed)
