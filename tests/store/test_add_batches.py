"""Adds of one loop tick share a write; a job that cannot be encoded fails alone."""

from __future__ import annotations

import asyncio

import pytest

from chasquimq.model.job_options import parse_durability
from chasquimq.settings import AbilitySettings, ConnectionSettings, ProducerSettings
from chasquimq.store.producer.store import ProducerStore
from chasquimq.store.producer.writes import ADDED
from chasquimq.wire.new_job import NewJob, new_job_id
from chasquimq.wire.payload import encode_payload

NOW_MS = 1_800_000_000_000


def job(extras: dict | None = None, name: str = "n") -> NewJob:
    return NewJob(new_job_id(NOW_MS), name, encode_payload(1), NOW_MS, extras=extras)


BAD = {
    "a value that no envelope holds": lambda: job({"trace": object()}),
    "a name that is no Unicode": lambda: job(name="\ud800"),
}


@pytest.fixture
def store_of(url, queue_name):
    """Stores that have added a job; all are closed when the test ends."""
    stores = []

    async def make(durability="server", **abilities) -> ProducerStore:
        parts = ConnectionSettings(url=url, queue=queue_name), ProducerSettings()
        wanted = AbilitySettings(**abilities)
        stores.append(ProducerStore(queue_name, *parts, wanted, parse_durability(durability)))
        await stores[-1].add(job(), 1)
        return stores[-1]

    return make, stores


@pytest.fixture
async def make_store(store_of):
    make, stores = store_of
    yield make
    for store in stores:
        await store.close()


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
@pytest.mark.parametrize("native", [None, False], ids=["native", "script"])
async def test_a_job_that_cannot_be_encoded_fails_alone_in_its_tick(make_store, raw, bad, native):
    store = await make_store(idempotent_add=native)

    adding = [store.add(one, 1) for one in (job(), job(), bad(), job())]
    ends = await asyncio.wait_for(asyncio.gather(*adding, return_exceptions=True), 10)

    assert [end is ADDED for end in ends] == [True, True, False, True]
    assert isinstance(ends[2], TypeError | UnicodeEncodeError)
    assert await raw("XLEN", raw.keys.stream) == 4
    assert store.unconfirmed.size == 0
    assert store.unconfirmed_jobs.try_enter(10_000)


@pytest.mark.own_server(aof="always")
@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
async def test_a_job_that_cannot_be_encoded_fails_alone_where_copies_are_waited_for(
    url, queue_name, bad
):
    settings = ConnectionSettings(url=url, queue=queue_name), ProducerSettings()
    durability = parse_durability("fsync")
    store = ProducerStore(queue_name, *settings, AbilitySettings(), durability)
    try:
        await store.add(job(), 1)
        adding = [store.add(one, 1) for one in (job(), bad(), job())]
        ends = await asyncio.wait_for(asyncio.gather(*adding, return_exceptions=True), 10)
    finally:
        await store.close()

    assert [end is ADDED for end in ends] == [True, False, True]
    assert store.unconfirmed.size == 0


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
async def test_a_lone_job_that_cannot_be_encoded_raises_and_takes_no_room(make_store, bad):
    store = await make_store()

    with pytest.raises((TypeError, UnicodeEncodeError)):
        await asyncio.wait_for(store.add(bad(), 1), 10)

    assert await store.add(job(), 1) is ADDED
    assert store.unconfirmed.size == 0
    assert store.unconfirmed_jobs.try_enter(10_000)


async def test_more_jobs_than_one_piece_holds_lose_only_the_one_that_cannot_be_encoded(
    make_store, raw
):
    store = await make_store()
    jobs = [job() for _ in range(500)]
    jobs[333] = job({"trace": object()})

    adding = [store.add(one, 1) for one in jobs]
    ends = await asyncio.wait_for(asyncio.gather(*adding, return_exceptions=True), 10)

    assert [at for at, end in enumerate(ends) if end is not ADDED] == [333]
    assert await raw("XLEN", raw.keys.stream) == 500
