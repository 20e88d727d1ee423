"""Adding: native adds and the script leave the same queue, and a resend adds nothing."""

from __future__ import annotations

import asyncio

import pytest

from chasquimq import Queue
from chasquimq.store.producer.sender import send_pieces
from chasquimq.store.producer.writes import AddMark
from chasquimq.wire.envelope import decode_envelope
from chasquimq.wire.new_job import JobEncoder

ADDED = AddMark.ADDED


@pytest.fixture
async def adding(url, queue_name, abilities):
    async with Queue(queue_name, redis_url=url, abilities=abilities) as queue:
        yield queue


@pytest.fixture
def new_jobs():
    encoder = JobEncoder(1_000, 1_000)

    def make(count: int, **options):
        specs = ({"name": "n", "data": i, "attempts": None, **options} for i in range(count))
        return [encoder.encode(spec, f"id-{i}", 1) for i, spec in enumerate(specs)]

    return make


async def sent(connection, write) -> list:
    """The replies to a write."""
    ended = asyncio.get_running_loop().create_future()
    send_pieces(connection, write.pieces(), ended.set_result)
    return await ended


async def entries(raw) -> list[tuple[str, bytes | None]]:
    """Job id and name of every entry of the stream, in order."""
    rows = await raw.entries(raw.keys.stream)
    return [(decode_envelope(row[b"d"]).id, row.get(b"n")) for _, row in rows]


async def test_the_stream_looks_the_same_whichever_way_jobs_came(adding, raw):
    jobs = await adding.add_bulk([{"name": "a", "data": 1}, {"name": "", "data": None}])
    single = await adding.add("b", {"x": [1, 2]})

    assert await entries(raw) == [(jobs[0].id, b"a"), (jobs[1].id, None), (single.id, b"b")]


@pytest.mark.parametrize("count", [1, 2, 1_000])
async def test_a_write_sent_twice_adds_each_job_once_and_answers_the_same(
    adding, raw, new_jobs, count
):
    store = adding._store()
    await adding.add("warm", 0)
    connection = await store.connection.connection()
    write = store.encoder.encode(new_jobs(count), 1)

    marks = []
    for _ in range(2):
        replies = await sent(connection, write)
        marks.append(store.sender.accept(write, replies))

    assert marks == [[ADDED] * count] * 2
    assert [job_id for job_id, _ in await entries(raw)][1:] == [f"id-{i}" for i in range(count)]


async def test_a_write_is_remembered_while_ten_thousand_others_are_unconfirmed(
    adding, raw, new_jobs
):
    store = adding._store()
    await adding.add("warm", 0)
    connection = await store.connection.connection()
    write = store.encoder.encode(new_jobs(1_000), 1)
    await sent(connection, write)
    await adding.add_bulk([{"name": "n", "data": None}] * 9_000)

    await sent(connection, write)

    assert await raw("XLEN", raw.keys.stream) == 10_001


async def test_a_resend_is_known_after_its_jobs_have_run_and_gone(adding, raw, new_jobs):
    store = adding._store()
    await adding.add("warm", 0)
    connection = await store.connection.connection()
    write = store.encoder.encode(new_jobs(3), 1)
    await sent(connection, write)
    await raw("XTRIM", raw.keys.stream, "MAXLEN", 0)

    await sent(connection, write)

    assert await raw("XLEN", raw.keys.stream) == 0


async def test_two_queues_may_use_the_same_fresh_looking_ids(url, abilities, raw, new_jobs):
    for _ in range(2):
        async with Queue(raw.keys.queue, redis_url=url, abilities=abilities) as queue:
            store = queue._store()
            assert await store.add_many(new_jobs(2), 1) == [ADDED] * 2

    assert await raw("XLEN", raw.keys.stream) == 4


async def test_own_ids_are_unique_whichever_way_the_server_has(adding, raw):
    first = await adding.add("n", 1, job_id="own")
    again = await adding.add("n", 1, job_id="own")

    assert (first.is_duplicate, again.is_duplicate) == (False, True)
    assert await raw("XLEN", raw.keys.stream) == 1
