"""Taking over what the silent left: a claiming read and the claim script give the same answers."""

from __future__ import annotations

import pytest

from chasquimq.engine.delivery_count import Requeue
from chasquimq.engine.in_flight import InFlight
from chasquimq.engine.settlement import Counters
from chasquimq.settings import ReadSettings
from conformance.conftest import LEASE_MS

STALE_MS = LEASE_MS + 1_000


@pytest.fixture
def take(consumer):
    """What `name` gets of stale work, whichever way the server has."""

    async def take_over(name: str, count: int = 10) -> list[tuple[str, int, int]]:
        store = await consumer(name)
        native = store.abilities.claim_on_read
        batch = await store.read(count, 0) if native else (await store.claim(count))[0]
        return [(d.job_id, d.earlier, d.run_number) for d in batch.deliveries]

    return take_over


@pytest.fixture
async def held(queue, consumer):
    """Three jobs that a consumer named `silent` holds: job ids by entry id."""
    await queue.add_bulk([{"name": "n", "data": i, "job_id": f"job-{i}"} for i in range(3)])
    silent = await consumer("silent")
    return {d.entry_id: d.job_id for d in (await silent.read(10, 0)).deliveries}


@pytest.fixture
def grow_stale(raw):
    async def age(entry_ids, owner="silent", deliveries=1) -> None:
        await raw(
            "XCLAIM", raw.keys.stream, "default", owner, 0, *entry_ids,
            "IDLE", STALE_MS, "RETRYCOUNT", deliveries, "JUSTID",
        )  # fmt: skip

    return age


async def owners(raw) -> dict[bytes, tuple[bytes, int]]:
    return {row[0]: (row[1], row[3]) for row in await raw.pending()}


async def test_stale_work_is_taken_over_with_what_it_was_charged(
    take, held, grow_stale, consumer, raw
):
    await grow_stale(held)

    assert await take("me") == [("job-0", 1, 2), ("job-1", 1, 2), ("job-2", 1, 2)]
    # A read charges its delivery as well; the worker takes that back until the job starts.
    is_charged_again = (await consumer("me")).abilities.claim_on_read
    assert set((await owners(raw)).values()) == {(b"me", 1 + is_charged_again)}


async def test_fresh_work_stays_with_its_owner(take, held, grow_stale, raw):
    stale, *fresh = held
    await grow_stale([stale])

    assert [job_id for job_id, _, _ in await take("me")] == ["job-0"]
    assert {(await owners(raw))[entry_id][0] for entry_id in fresh} == {b"silent"}


@pytest.mark.parametrize("deliveries", [0, 1, 5])
async def test_earlier_deliveries_are_counted_the_same(take, held, grow_stale, deliveries):
    await grow_stale(held, deliveries=deliveries)

    assert {earlier for _, earlier, _ in await take("me")} == {deliveries}


async def test_ones_own_stale_work_comes_back_too(take, held, grow_stale):
    await grow_stale(held, owner="me")

    assert len(await take("me")) == 3


async def test_no_more_is_taken_than_asked_for(take, held, grow_stale):
    await grow_stale(held)

    assert len(await take("me", count=2)) == 2
    assert len(await take("other", count=2)) == 1


async def test_a_pending_entry_whose_body_was_deleted_is_passed_over(take, held, grow_stale, raw):
    await grow_stale(held)
    ghost, *_ = held
    await raw("XDEL", raw.keys.stream, ghost)

    assert [job_id for job_id, _, _ in await take("me")] == ["job-1", "job-2"]


async def test_what_was_handed_back_is_claimable_at_once_and_uncharged(take, held, consumer):
    silent = await consumer("silent")
    await silent.requeue([(entry_id, 0) for entry_id in held])

    assert await take("me") == [("job-0", 0, 1), ("job-1", 0, 1), ("job-2", 0, 1)]


@pytest.mark.parametrize("deliveries", [0, 2, 5])
async def test_a_take_over_whose_answer_was_lost_goes_back_with_what_was_spent(
    take, held, grow_stale, consumer, raw, deliveries
):
    await grow_stale(held, deliveries=deliveries)
    await take("me")

    # Nothing of that answer is held here.
    unheard = Requeue(await consumer("me"), InFlight(1, ReadSettings(), lambda _: 25), Counters())
    await unheard.requeue_unseen()

    assert set((await owners(raw)).values()) == {(b"returned", deliveries)}


async def test_nothing_is_stale_where_everyone_renews(take, held):
    assert await take("me") == []


async def test_more_stale_entries_than_a_script_can_name_are_taken_in_turns(
    queue, consumer, grow_stale, take
):
    count = 9_000
    await queue.add_bulk([{"name": "n", "data": None}] * count)
    silent = await consumer("silent")
    entry_ids = [d.entry_id for d in (await silent.read(count, 0)).deliveries]
    await grow_stale(entry_ids)

    taken = {job_id for _ in range(count // 1_000) for job_id, *_ in await take("me", count)}

    assert len(taken) == count
