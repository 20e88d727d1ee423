"""What an add does when the server or the way to it fails: resent if that is safe, told if not."""

from __future__ import annotations

import asyncio
import time

import pytest

from chasquimq import Queue
from chasquimq.errors import (
    ConnectionLost,
    DurabilityNotMet,
    ServerOutOfMemory,
    ServerRefused,
    ServerUnreachable,
)
from chasquimq.settings import AbilitySettings
from chasquimq.store.producer.writes import AddMark
from store.fake_server import ENTRY_ID, NEW, FakeServer
from support.faultproxy import FaultProxy
from support.waiting import eventually, patience

OOM = b"-OOM command not allowed when used memory > 'maxmemory'.\r\n"
READONLY = b"-READONLY You can't write against a read only replica.\r\n"


@pytest.fixture
async def queue_at(queue_name):
    """Open queues at any address; all are closed when the test ends."""
    queues = []

    def make(url, **options) -> Queue:
        queues.append(Queue(queue_name, redis_url=url, **options))
        return queues[-1]

    yield make
    for queue in queues:
        await queue.close()


def added_ids(server: FakeServer) -> list[str]:
    """The ids of all jobs that came as native adds, in order."""
    return [c[4].decode() for c in server.commands if c[0] == b"XADD"]


def bulk(count: int) -> list[dict]:
    return [{"name": "n", "data": i} for i in range(count)]


async def test_an_add_whose_reply_was_lost_is_sent_again_and_added_once(queue_at, proxy, raw):
    queue = queue_at(proxy.url)
    await queue.add("warm", 0)
    proxy.drop_replies()
    adding = asyncio.ensure_future(queue.add("n", 1))
    await eventually(lambda: proxy.dropped_bytes)

    proxy.cut()
    proxy.thaw()

    await asyncio.wait_for(adding, 10)
    assert await raw("XLEN", raw.keys.stream) == 2


async def test_without_resend_a_lost_reply_is_told_with_the_jobs_it_is_about(queue_at, proxy, raw):
    queue = queue_at(proxy.url, resend=False)
    await queue.add("warm", 0)
    proxy.drop_replies()
    adding = asyncio.ensure_future(queue.add_bulk(bulk(3)))
    await eventually(lambda: proxy.dropped_bytes)

    proxy.cut()

    with pytest.raises(ConnectionLost) as caught:
        await asyncio.wait_for(adding, 10)
    assert caught.value.outcome == "unknown"
    assert len(set(caught.value.job_ids)) == 3
    assert await raw("XLEN", raw.keys.stream) == 4


@pytest.mark.parametrize("resend", [True, False])
async def test_a_bulk_that_left_before_its_connection_broke_is_heard_of(
    queue_at, proxy, raw, resend
):
    queue = queue_at(proxy.url, resend=resend)
    await queue.add("warm", 0)
    store, encoder = queue._store(), queue._encoder
    proxy.drop_replies()
    jobs = [encoder.encode(spec, f"id-{at}", 1) for at, spec in enumerate(bulk(300))]
    under_way = store.add_many(jobs, 1)
    await eventually(lambda: proxy.dropped_bytes)
    proxy.cut()
    proxy.thaw()
    await eventually(lambda: not store.connection.is_up)

    if resend:
        assert await asyncio.wait_for(under_way, 10) == [AddMark.ADDED] * 300
    else:
        with pytest.raises(ConnectionLost) as caught:
            await asyncio.wait_for(under_way, 10)
        assert (caught.value.outcome, len(caught.value.job_ids)) == ("unknown", 300)
    assert await raw("XLEN", raw.keys.stream) == 301


async def test_without_resend_each_of_many_adds_hears_of_its_own_job_alone(queue_at, proxy):
    queue = queue_at(proxy.url, resend=False)
    await queue.add("warm", 0)
    proxy.drop_replies()
    adding = [asyncio.ensure_future(queue.add("n", i)) for i in range(5)]
    await eventually(lambda: proxy.dropped_bytes)

    proxy.cut()

    errors = await asyncio.wait_for(asyncio.gather(*adding, return_exceptions=True), 10)
    assert {(type(error), error.outcome) for error in errors} == {(ConnectionLost, "unknown")}
    assert [len(error.job_ids) for error in errors] == [1] * 5
    assert len({error.job_ids[0] for error in errors}) == 5


async def test_without_resend_an_error_reply_is_told_and_nothing_is_sent_again(queue_at):
    async with FakeServer(NEW | {"XADD": (ENTRY_ID, READONLY, ENTRY_ID)}) as server:
        queue = queue_at(server.url, resend=False)

        with pytest.raises(ServerRefused, match="READONLY") as caught:
            await asyncio.wait_for(queue.add_bulk(bulk(3)), 10)

        assert len(caught.value.job_ids) == 1
        assert server.count("XADD") == 3


async def test_a_bulk_that_fails_halfway_names_every_job_that_is_not_in_the_queue(queue_at):
    answers = (*[ENTRY_ID] * 1_000, ENTRY_ID, OOM)
    async with FakeServer(NEW | {"XADD": answers}) as server:
        queue = queue_at(server.url)

        with pytest.raises(ServerOutOfMemory) as caught:
            await queue.add_bulk(bulk(3_500))

        sent = added_ids(server)
        missing = caught.value.job_ids
        assert len(sent) == 2_000
        assert len(missing) == 3_500 - 1_001
        assert missing[:999] == sent[1_001:]
        assert not set(missing[999:]) & set(sent)


async def test_one_refused_add_does_not_fail_the_others_of_its_write(queue_at):
    async with FakeServer(NEW | {"XADD": (ENTRY_ID, ENTRY_ID, OOM, ENTRY_ID)}) as server:
        queue = queue_at(server.url)
        await queue.add("warm", 0)

        first, refused, last = await asyncio.gather(
            *(queue.add("n", i) for i in range(3)), return_exceptions=True
        )

        assert isinstance(refused, ServerOutOfMemory)
        assert refused.job_ids == [added_ids(server)[2]]
        assert [first.id, last.id] == [added_ids(server)[1], added_ids(server)[3]]


async def test_adds_that_find_no_server_each_name_their_own_job(queue_at, proxy):
    queue = queue_at(proxy.url)
    proxy.refuse()

    errors = await asyncio.gather(
        queue.add("n", 1), queue.add("n", 2), queue.add_bulk(bulk(2)), return_exceptions=True
    )

    assert {(type(error), error.outcome) for error in errors} == {(ServerUnreachable, "not_done")}
    assert [len(error.job_ids) for error in errors] == [1, 1, 2]
    assert len({job_id for error in errors for job_id in error.job_ids}) == 4


@pytest.mark.parametrize("way", ["add", "add_bulk"])
async def test_closing_a_queue_ends_the_adds_that_wait_for_an_answer(queue_at, proxy, way):
    queue = queue_at(proxy.url)
    await queue.add("warm", 0)
    proxy.freeze()
    args, count = (("n", 1), 1) if way == "add" else ((bulk(2),), 2)
    adding = asyncio.ensure_future(getattr(queue, way)(*args))
    await eventually(lambda: queue._store().unconfirmed_jobs._inside == count)
    closed_s = time.monotonic()

    await queue.close()

    with pytest.raises(ConnectionLost) as caught:
        await adding
    # A busy loop would keep every timeout from firing, so the time itself is looked at.
    assert time.monotonic() - closed_s < 2 * patience()
    assert caught.value.outcome == "unknown"
    assert len(caught.value.job_ids) == count


async def test_closing_a_queue_ends_the_adds_that_wait_for_a_server(queue_at, proxy):
    queue = queue_at(proxy.url)
    await queue.add("warm", 0)
    proxy.refuse()
    proxy.cut()
    link = queue._store().connection
    await eventually(lambda: not link.is_up)
    adding = [asyncio.ensure_future(queue.add("n", i)) for i in range(2)]
    await eventually(lambda: link.dial_count >= 2)

    await queue.close()

    errors = await asyncio.wait_for(asyncio.gather(*adding, return_exceptions=True), 10)
    assert {type(error) for error in errors} == {ConnectionLost}


async def test_adds_in_trouble_keep_their_places_among_the_unconfirmed(queue_at, proxy):
    queue = queue_at(proxy.url)
    await queue.add("warm", 0)
    store = queue._store()
    store.unconfirmed_jobs._size_max = 5
    proxy.freeze()
    adding = [asyncio.ensure_future(queue.add("n", i)) for i in range(5)]
    await eventually(lambda: store.unconfirmed_jobs._inside == 5)
    adding.append(asyncio.ensure_future(queue.add("one too many", 5)))
    await eventually(lambda: store.unconfirmed_jobs._waiting)

    proxy.refuse()
    proxy.cut()
    await eventually(lambda: store.connection.dial_count >= 2)

    assert store.unconfirmed_jobs._inside == 5
    proxy.thaw()
    await proxy.accept()
    await asyncio.wait_for(asyncio.gather(*adding), 10)
    assert store.unconfirmed_jobs._inside == 0


async def test_an_outage_shorter_than_the_patience_of_an_add_costs_only_time(queue_at, proxy, raw):
    queue = queue_at(proxy.url)
    await queue.add("warm", 0)
    proxy.refuse()
    proxy.cut()
    adding = [asyncio.ensure_future(queue.add("n", i)) for i in range(10)]
    await eventually(lambda: queue._store().connection.dial_count >= 3)

    await proxy.accept()

    await asyncio.wait_for(asyncio.gather(*adding), 10)
    assert await raw("XLEN", raw.keys.stream) == 11


async def test_a_write_that_reached_the_server_in_part_is_added_once(queue_at, proxy, raw):
    queue = queue_at(proxy.url)
    await queue.add("warm", 0)
    proxy.cut_after(20_000)

    await asyncio.wait_for(queue.add_bulk(bulk(1_000)), 10)

    assert await raw("XLEN", raw.keys.stream) == 1_001


async def test_a_cut_while_a_new_connection_is_made_ready_costs_only_time(queue_at, proxy, raw):
    queue = queue_at(proxy.url)
    await queue.counts()
    store = queue._store()
    make_ready, cuts = store._widen_memory, []

    async def cut_once(connection) -> None:
        if not cuts:
            cuts.append(proxy.cut())
            await eventually(lambda: not connection.is_open)
            await connection.call("PING")
        await make_ready(connection)

    store._widen_memory = cut_once

    await asyncio.wait_for(queue.add_bulk(bulk(2)), 10)

    assert cuts
    assert await raw("XLEN", raw.keys.stream) == 2


async def test_a_server_that_forgot_the_scripts_is_told_them_again(queue_at, raw, url):
    queue = queue_at(url, max_stream_len=100)
    await queue.add("n", 1)
    await raw("SCRIPT", "FLUSH")

    await asyncio.gather(*(queue.add("n", i) for i in range(5)))

    assert await raw("XLEN", raw.keys.stream) == 6


async def test_looking_at_a_queue_that_does_not_exist_creates_nothing(queue_at, url, snapshot):
    queue = queue_at(url)

    assert (await queue.counts()).backlog == 0
    assert await snapshot() == {}


async def test_a_native_server_remembers_ten_thousand_ids_before_the_first_add(
    queue_at, url, kind, raw
):
    queue = queue_at(url)
    await queue.counts()
    await queue.add("n", 1)
    if not (await queue._store().abilities()).idempotent_add:
        return

    facts = await raw("XINFO", "STREAM", raw.keys.stream)

    assert facts[facts.index(b"idmp-maxsize") + 1] == 10_000


async def test_a_cancel_without_an_answer_may_have_happened_whatever_comes_after(
    queue_at, proxy, raw
):
    queue = queue_at(proxy.url, add_timeout_ms=400)
    await queue.add("n", 1, delay_ms=60_000, job_id="a")
    await queue.cancel_delayed("nobody")  # the server knows the script from now on
    proxy.drop_replies()
    cancelling = asyncio.ensure_future(queue.cancel_delayed("a"))
    await eventually(lambda: proxy.dropped_bytes)

    proxy.slam()

    with pytest.raises(ConnectionLost) as caught:
        await asyncio.wait_for(cancelling, 10)
    assert caught.value.outcome == "unknown"
    assert await raw("ZCARD", raw.keys.delayed) == 0


@pytest.mark.needs("WAITAOF")
@pytest.mark.own_server(aof="everysec")
@pytest.mark.parametrize("idempotent_add", [None, False], ids=["as probed", "by script"])
async def test_a_resent_write_is_not_confirmed_by_a_wait_for_nothing(
    queue_at, proxy, raw, idempotent_add, monkeypatch
):
    monkeypatch.setattr("chasquimq.store.producer.durability._WAIT_MS", 50)
    abilities = AbilitySettings(idempotent_add=idempotent_add)
    queue = queue_at(proxy.url, durability="fsync", abilities=abilities)
    await queue.counts()
    await raw("CONFIG", "SET", "appendfsync", "no")
    proxy.drop_replies()
    adding = asyncio.ensure_future(queue.add("n", 1))
    await eventually(lambda: proxy.dropped_bytes)

    proxy.cut()
    proxy.thaw()

    with pytest.raises(DurabilityNotMet) as caught:
        await asyncio.wait_for(adding, 10)
    assert len(caught.value.job_ids) == 1
    assert await raw("XLEN", raw.keys.stream) == 1


@pytest.mark.needs("WAITAOF")
@pytest.mark.own_server(aof="everysec")
async def test_a_bulk_that_is_not_confirmed_is_written_whole_and_names_every_job(
    url, queue_at, raw, monkeypatch
):
    monkeypatch.setattr("chasquimq.store.producer.durability._WAIT_MS", 50)
    await raw("CONFIG", "SET", "appendfsync", "no")
    queue = queue_at(url, durability="fsync")

    with pytest.raises(DurabilityNotMet) as caught:
        await queue.add_bulk(bulk(2_500))

    assert len(set(caught.value.job_ids)) == 2_500
    assert await raw("XLEN", raw.keys.stream) == 2_500


async def test_frozen_adds_are_told_within_their_time(queue_name, url):
    async with (
        FaultProxy(url) as proxy,
        Queue(queue_name, redis_url=proxy.url, resend=False, command_timeout_ms=200) as queue,
    ):
        await queue.add("warm", 0)
        proxy.freeze()

        with pytest.raises(ConnectionLost, match=r"within 0.2 s"):
            await asyncio.wait_for(queue.add("n", 1), 10)
