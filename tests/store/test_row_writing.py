"""Rows on their way: several writes at once, answered, lost and sent again, or waiting for room."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from chasquimq.errors import QueueFull, ServerOutOfMemory, ServerUnreachable, StoreError
from chasquimq.settings import ConnectionSettings
from chasquimq.store.producer.rows import (
    Jobs,
    OwnIdTerms,
    Patience,
    RowOwner,
    RowWriter,
    own_id_write,
    own_id_writes,
    run_write,
)
from chasquimq.wire.envelope import decode_envelope
from chasquimq.wire.new_job import encode_envelopes, job_digests, row_digests
from support.older import without_many_set


@pytest.fixture
def writers(queue_name):
    """Opens writers whose marks are counted together; closes them when the test ends."""
    opened: list[RowWriter] = []
    marks: Counter[int] = Counter()

    def make(url: str, **options) -> tuple[RowWriter, Counter[int]]:
        settings = ConnectionSettings(url=url)
        writer = RowWriter(queue_name, settings, lambda _, got: marks.update(got), **options)
        opened.append(writer)
        return writer, marks

    yield make
    for writer in opened:
        writer.close()


def some_rows(writer: RowWriter, first: int, count: int, *, cap: int = 0):
    ids = [f"row-{at}" for at in range(first, first + count)]
    jobs = Jobs(ids, ["n"] * count, encode_envelopes(ids, [b"\xc0"] * count, 5))
    digests = job_digests(jobs.names, [b"\xc0"] * count)
    return own_id_write(jobs, digests, writer.keys, terms(cap=cap))


def terms(*, cap: int = 0, has_many_set: bool = True, has_leftovers: bool = False) -> OwnIdTerms:
    return OwnIdTerms(
        stream_len_max=cap, unique_ms=60_000, has_leftovers=has_leftovers, has_many_set=has_many_set
    )


def put_ids(writer: RowWriter, rows: list[tuple[str, bytes]], *, has_leftovers=False) -> None:
    """Rows of (id, payload), as a task of Spark puts them."""
    ids, payloads = [one for one, _ in rows], [payload for _, payload in rows]
    jobs = Jobs(ids, ["n"] * len(rows), encode_envelopes(ids, payloads, 5))
    asked = terms(has_many_set=writer.has_many_set(), has_leftovers=has_leftovers)
    for write in own_id_writes(jobs, job_digests(jobs.names, payloads), writer.keys, asked):
        writer.put(write)
    writer.drain()


def put_all(writer: RowWriter, write_count: int, rows_each: int = 10) -> None:
    for at in range(write_count):
        writer.put(some_rows(writer, at * rows_each, rows_each))
    writer.drain()


def put_in_twos(writer: RowWriter, write_count: int) -> None:
    """Two on the way at a time, so that a busy machine cannot make one piece of them all."""
    for at in range(write_count):
        writer.put(some_rows(writer, at * 10, 10))
        if at % 2:
            writer.drain()


async def ids_of(raw) -> list[str]:
    return [decode_envelope(one[b"d"]).id for _, one in await raw.entries(raw.keys.stream)]


async def test_writes_are_added_in_order_and_counted(writers, url, raw):
    writer, marks = writers(url)

    await asyncio.to_thread(put_all, writer, 20)

    assert marks == {ord("1"): 200}
    assert await ids_of(raw) == [f"row-{at}" for at in range(200)]


async def test_a_server_that_forgot_the_script_is_told_again(writers, url, raw):
    writer, marks = writers(url)
    await asyncio.to_thread(writer.put, some_rows(writer, 0, 1))
    await asyncio.to_thread(writer.drain)
    await raw("SCRIPT", "FLUSH")

    await asyncio.to_thread(put_all, writer, 5)

    assert marks == {ord("1"): 50, ord("0"): 1}


async def test_writes_whose_replies_were_lost_are_sent_again_and_counted_once(writers, proxy, raw):
    writer, marks = writers(proxy.url)
    await asyncio.to_thread(put_all, writer, 1)
    proxy.lose_replies(0.4, [b"EVALSHA"], seed=3)

    await asyncio.to_thread(put_in_twos, writer, 20)

    assert proxy.lost_count > 0
    assert marks == {ord("1"): 200, ord("0"): 10}
    assert sorted(await ids_of(raw)) == sorted(f"row-{at}" for at in range(200))


async def test_a_cut_inside_a_write_adds_nothing_twice(writers, proxy, raw):
    writer, marks = writers(proxy.url)
    await asyncio.to_thread(put_all, writer, 1)
    proxy.cut_after(5_000)

    await asyncio.to_thread(put_all, writer, 20)

    assert marks[ord("1")] == 200
    assert len(await ids_of(raw)) == 200


async def test_rows_of_a_run_survive_lost_replies_too(writers, proxy, raw):
    writer, marks = writers(proxy.url)
    owner = RowOwner("r", "i", 0, 0)

    def put() -> None:
        for at in range(20):
            if at % 2:
                writer.drain()
            payloads = [b"%d" % (at * 7 + row // 2) for row in range(10)]
            digests = row_digests("r", ["n"] * 10, payloads)
            ids = [digest.hex() for digest in digests]
            jobs = Jobs(ids, ["n"] * 10, encode_envelopes(ids, payloads, 5))
            writer.put(
                run_write(jobs, digests, writer.keys, owner, stream_len_max=0, keep_ms=60_000)
            )
        writer.drain()

    proxy.lose_replies(0.3, [b"EVALSHA"], seed=5)
    await asyncio.to_thread(put)

    assert proxy.lost_count > 0
    assert marks == {ord("1"): 200}
    assert len(set(await ids_of(raw))) == 200


async def test_a_full_queue_is_waited_for(writers, url, raw):
    writer, marks = writers(url, stream_len_max=10)
    await asyncio.to_thread(writer.put, some_rows(writer, 0, 10, cap=10))
    await asyncio.to_thread(writer.drain)

    writer.put(some_rows(writer, 10, 10, cap=10))
    draining = asyncio.create_task(asyncio.to_thread(writer.drain))
    await raw("XTRIM", raw.keys.stream, "MAXLEN", 0)
    await draining

    assert marks == {ord("1"): 20}


async def test_a_queue_that_stays_full_is_told_after_a_while(writers, url, raw):
    writer, _ = writers(url, stream_len_max=5, patience=Patience(full_s=0.05))
    writer.put(some_rows(writer, 0, 5, cap=5))
    writer.put(some_rows(writer, 5, 5, cap=5))

    with pytest.raises(QueueFull, match="may hold at most 5 jobs") as full:
        writer.drain()

    assert len(full.value.job_ids) == 5


async def test_a_server_without_memory_is_waited_for(writers, url, raw):
    writer, marks = writers(url)
    writer.put(some_rows(writer, 10, 1))
    await raw("CONFIG", "SET", "maxmemory", "1mb")
    try:
        writer.put(some_rows(writer, 0, 10))
        draining = asyncio.create_task(asyncio.to_thread(writer.drain))
        told, _ = await asyncio.wait([draining], timeout=0.2)
    finally:
        await raw("CONFIG", "SET", "maxmemory", "0")
    await draining

    assert not told
    assert marks == {ord("1"): 11}


async def test_memory_that_stays_out_is_told_after_a_while(writers, url, raw):
    writer, _ = writers(url, patience=Patience(full_s=0.05))
    await raw("CONFIG", "SET", "maxmemory", "1mb")
    try:
        with pytest.raises(ServerOutOfMemory):
            writer.put(some_rows(writer, 0, 10))
    finally:
        await raw("CONFIG", "SET", "maxmemory", "0")


async def test_a_refusal_is_raised_at_once(writers, url, raw):
    writer, _ = writers(url)
    await raw("SET", raw.keys.stream, "no stream")

    with pytest.raises(StoreError, match="WRONGTYPE"):
        writer.put(some_rows(writer, 0, 10))


async def test_a_server_that_is_gone_is_told_after_a_while(writers, proxy):
    writer, _ = writers(proxy.url, patience=Patience(resend_s=0.2))
    await asyncio.to_thread(put_all, writer, 1)
    proxy.refuse()
    proxy.cut()

    with pytest.raises((ServerUnreachable, StoreError)):
        await asyncio.to_thread(put_all, writer, 1)


async def test_notes_of_a_run_are_read_back_until_they_expire(writers, url, raw, queue_name):
    writer, _ = writers(url)

    await asyncio.to_thread(writer.note, "r", ["3", "100", "4", "50"])

    assert await asyncio.to_thread(writer.notes, "r") == {"3": "100", "4": "50"}
    assert await raw("TTL", raw.keys.token("report:r")) > 3_000


async def test_leftovers_of_former_jobs_are_seen(writers, url, raw):
    writer, _ = writers(url)
    await raw("SET", raw.keys.outcome("b"), "o")

    assert await asyncio.to_thread(writer.has_leftovers, ["a", "b"])
    assert not await asyncio.to_thread(writer.has_leftovers, ["a", "c"])


async def test_a_pace_is_shared_by_writers(writers, url):
    (one, _), (other, _) = writers(url), writers(url)

    first = await asyncio.to_thread(one.wait_ms, "r", 100, 10.0)
    second = await asyncio.to_thread(other.wait_ms, "r", 100, 10.0)

    assert first == 0
    assert second > 5_000


def numbered(*numbers: int) -> list[tuple[str, bytes]]:
    return [(f"row-{at}", b"%d" % at) for at in numbers]


async def test_many_rows_with_ids_are_several_writes_and_keep_their_order(writers, url, raw):
    writer, marks = writers(url)

    await asyncio.to_thread(put_ids, writer, numbered(*range(1_000)))

    assert marks == {ord("1"): 1_000}
    assert await ids_of(raw) == [f"row-{at}" for at in range(1_000)]
    assert len(await raw("KEYS", raw.keys.token("*"))) == 4


async def test_rows_that_are_known_new_doubled_or_in_conflict_are_told_apart(writers, url, raw):
    writer, marks = writers(url)
    await asyncio.to_thread(put_ids, writer, numbered(*range(300)))
    marks.clear()

    rows = [
        *numbered(*range(290, 320)),
        *numbered(319, 319),
        ("row-319", b"other"),
        ("row-5", b"?"),
    ]
    await asyncio.to_thread(put_ids, writer, rows)

    assert marks == {ord("1"): 20, ord("0"): 12, ord("2"): 2}
    assert await ids_of(raw) == [f"row-{at}" for at in range(320)]


async def test_an_id_that_comes_twice_in_a_write_of_new_rows_is_one_job(writers, url, raw):
    writer, marks = writers(url)

    await asyncio.to_thread(put_ids, writer, [*numbered(1, 2, 1), ("row-2", b"other")])

    assert marks == {ord("1"): 2, ord("0"): 1, ord("2"): 1}
    assert await ids_of(raw) == ["row-1", "row-2"]


async def test_what_former_jobs_left_goes_with_new_rows(writers, url, raw):
    writer, _ = writers(url)
    await raw("MSET", raw.keys.result("row-1"), "r", raw.keys.outcome("row-2"), "o")

    await asyncio.to_thread(put_ids, writer, numbered(*range(600)), has_leftovers=True)

    assert await raw("EXISTS", raw.keys.result("row-1"), raw.keys.outcome("row-2")) == 0


async def test_ids_are_known_to_rows_and_to_adds_alike(writers, url, queue):
    writer, marks = writers(url)
    await queue.add("n", 1, job_id="row-1")
    await asyncio.to_thread(
        put_ids, writer, [("row-0", b"\x00"), ("row-1", b"\x01"), ("row-2", b"\x02")]
    )

    again = await queue.add("n", 2, job_id="row-2")

    assert marks == {ord("1"): 2, ord("0"): 1}
    assert again.is_duplicate


async def test_a_server_is_asked_for_the_command_once_and_nothing_is_written(
    writers, url, raw, snapshot
):
    writer, _ = writers(url)
    (known,) = await raw("COMMAND", "INFO", "MSETEX")
    await raw("CONFIG", "RESETSTAT")

    found = [await asyncio.to_thread(writer.has_many_set) for _ in range(2)]

    assert found == [known is not None] * 2
    assert await snapshot() == {}
    assert "cmdstat_exists:calls=1," in (await raw("INFO", "commandstats")).decode()


async def test_a_server_without_memory_has_the_command_all_the_same(writers, url, raw):
    writer, _ = writers(url)
    (known,) = await raw("COMMAND", "INFO", "MSETEX")
    await raw("CONFIG", "SET", "maxmemory", "1mb")
    try:
        assert await asyncio.to_thread(writer.has_many_set) is (known is not None)
    finally:
        await raw("CONFIG", "SET", "maxmemory", "0")


async def test_an_older_server_is_written_to_row_by_row(kind):
    async with without_many_set(kind) as (url, raw):
        marks: Counter[int] = Counter()
        writer = RowWriter("q", ConnectionSettings(url=url), lambda _, got: marks.update(got))

        assert not await asyncio.to_thread(writer.has_many_set)
        # The first row brings a connection, whose greeting may hold unknown words, too.
        await asyncio.to_thread(put_ids, writer, numbered(0))
        refused = await refusals(raw)
        await asyncio.to_thread(put_ids, writer, numbered(*range(1, 300)))
        await asyncio.to_thread(put_ids, writer, [*numbered(299, 300, 300), ("row-0", b"other")])
        writer.close()

        assert marks == {ord("1"): 301, ord("0"): 2, ord("2"): 1}
        assert await ids_of(raw) == [f"row-{at}" for at in range(301)]
        # Nothing was tried in vain after the question.
        assert await refusals(raw) == refused


async def refusals(raw) -> int:
    """How often the server said ERR: of a command that it does not have, for one."""
    errors = (await raw("INFO", "errorstats")).decode()
    return int(errors.partition("errorstat_ERR:count=")[2].partition("\r\n")[0])
