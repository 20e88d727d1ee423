"""Adds under way while their address comes to lead to a server that knows more commands, or fewer."""

from __future__ import annotations

import asyncio

import pytest

from chasquimq import Queue
from chasquimq.errors import ConnectionLost
from store.fake_server import ENTRY_ID, NEW, OLD, FakeServer
from support.faultproxy import FaultProxy
from support.raw import Raw
from support.servers import server_kinds
from support.waiting import eventually

READONLY = b"-READONLY You can't write against a read only replica.\r\n"
MARKS = b"*3\r\n:1\r\n:1\r\n:1\r\n"


def bulk(count: int) -> list[dict]:
    return [{"name": "n", "data": at} for at in range(count)]


# How jobs are added, with how many that makes in the stream and in the delayed set.
WAYS = {
    "add": (lambda queue: queue.add("n", 1), 1, 0),
    "bulk": (lambda queue: queue.add_bulk(bulk(300)), 300, 0),
    "several bulks": (lambda queue: queue.add_bulk(bulk(2_500)), 2_500, 0),
    "own id": (lambda queue: queue.add("n", 1, job_id="a"), 1, 0),
    "delayed": (lambda queue: queue.add("n", 1, delay_ms=60_000), 0, 1),
    "delayed own id": (lambda queue: queue.add("n", 1, delay_ms=60_000, job_id="a"), 0, 1),
}
# The server itself remembers these, where it can; the others are remembered by a token.
REMEMBERED_BY_SERVER = {"add", "bulk", "several bulks"}


@pytest.fixture
def other(kind):
    """A server of another kind."""
    others = [other for other in server_kinds() if other != kind]
    if not others:
        pytest.skip("one kind of server is no change")
    with others[0].session() as server:
        yield server


@pytest.fixture
async def there(other, queue_name):
    raw = await Raw.open(other.url, queue_name)
    yield raw
    await raw.close()


@pytest.fixture
async def moved_queue(proxy, queue_name):
    async with Queue(queue_name, redis_url=proxy.url) as queue:
        await queue.add("warm", 0)
        # The scripts are known from now on: a call is answered the first time it is sent.
        await queue.add("warm", 0, job_id="warm")
        await queue.add("warm", 0, delay_ms=60_000)
        yield queue


async def held(raw: Raw) -> tuple[int, int]:
    return await raw("XLEN", raw.keys.stream), await raw("ZCARD", raw.keys.delayed)


async def ids_remembered(raw: Raw) -> int:
    """How many adds the server took with an id that it remembers; 0 where it cannot."""
    facts = await raw("XINFO", "STREAM", raw.keys.stream)
    return facts[facts.index(b"iids-added") + 1] if b"iids-added" in facts else 0


async def check_form(queue: Queue, there: Raw, way: str) -> None:
    """Jobs are remembered natively where this server can, and only there."""
    _, ready, _ = WAYS[way]
    is_native = (await queue._store().abilities()).idempotent_add
    if ready:
        expected = ready if is_native and way in REMEMBERED_BY_SERVER else 0
        assert await ids_remembered(there) == expected


@pytest.mark.parametrize("way", WAYS)
async def test_what_was_never_sent_is_encoded_for_the_server_that_answers(
    moved_queue, proxy, other, there, way
):
    add, ready, delayed = WAYS[way]
    link = moved_queue._store().connection
    proxy.refuse()
    proxy.cut()
    await eventually(lambda: not link.is_up)
    adding = asyncio.ensure_future(add(moved_queue))
    await eventually(lambda: link.dial_count >= 2)

    proxy.lead_to(other.url)
    await proxy.accept()

    await asyncio.wait_for(adding, 10)
    assert await held(there) == (ready, delayed)
    await check_form(moved_queue, there, way)


@pytest.mark.parametrize("way", WAYS)
async def test_adds_that_found_their_connection_closed_are_encoded_anew(
    moved_queue, proxy, other, there, way
):
    """They were encoded for the former server, and nothing of them had left."""
    add, ready, delayed = WAYS[way]
    store = moved_queue._store()
    proxy.lead_to(other.url)
    await store.unconfirmed_jobs.enter(10_000)
    adding = asyncio.ensure_future(add(moved_queue))
    await eventually(lambda: store.unconfirmed_jobs._waiting)
    proxy.cut()
    await eventually(lambda: not store.connection.is_up)

    store.unconfirmed_jobs.leave(10_000)

    await asyncio.wait_for(adding, 10)
    assert await held(there) == (ready, delayed)
    await check_form(moved_queue, there, way)


@pytest.mark.parametrize("way", WAYS)
async def test_what_was_sent_once_is_recognised_there_or_told_as_unknown(
    moved_queue, proxy, other, there, raw, way
):
    add, ready, delayed = WAYS[way]
    was_native = (await moved_queue._store().abilities()).idempotent_add
    before = await held(raw)
    proxy.drop_replies()
    adding = asyncio.ensure_future(add(moved_queue))
    await eventually(lambda: proxy.dropped_bytes)
    proxy.lead_to(other.url)
    proxy.cut()
    proxy.thaw()

    if was_native and way in REMEMBERED_BY_SERVER:
        with pytest.raises(ConnectionLost, match="look for them before you add them again") as told:
            await asyncio.wait_for(adding, 10)
        assert (told.value.outcome, len(set(told.value.job_ids))) == ("unknown", ready)
        assert await held(there) == (0, 0)
    else:
        await asyncio.wait_for(adding, 10)
        assert await held(there) == (ready, delayed)
    assert sum(await held(raw)) > sum(before)


async def test_each_of_many_adds_that_were_sent_hears_of_its_own_job(
    moved_queue, proxy, other, there
):
    is_told = (await moved_queue._store().abilities()).idempotent_add
    proxy.drop_replies()
    adding = [asyncio.ensure_future(moved_queue.add("n", at)) for at in range(5)]
    await eventually(lambda: proxy.dropped_bytes)
    proxy.lead_to(other.url)
    proxy.cut()
    proxy.thaw()

    answers = await asyncio.wait_for(asyncio.gather(*adding, return_exceptions=True), 10)

    told = [answer for answer in answers if isinstance(answer, ConnectionLost)]
    assert len(told) == (5 if is_told else 0)
    assert {(error.outcome, len(error.job_ids)) for error in told} <= {("unknown", 1)}
    assert await held(there) == ((0, 0) if is_told else (5, 0))


# Its users may or may not use its memory for ids: one data set, two kinds of server.
@pytest.mark.needs("XCFGSET")
@pytest.mark.parametrize("count", [1, 1_000])
@pytest.mark.own_server
async def test_a_server_with_the_same_jobs_that_remembers_no_ids_adds_none_twice(
    proxy, raw, queue_name, count
):
    """A failover to an older replica: the jobs are there, and what was remembered is not."""
    async with Queue(queue_name, redis_url=proxy.url) as queue:
        await queue.add("warm", 0)
        proxy.drop_replies()
        adding = asyncio.ensure_future(queue.add_bulk(bulk(count)))
        await eventually(lambda: proxy.dropped_bytes)
        await raw("ACL", "SETUSER", "default", "-xcfgset")
        proxy.cut()
        proxy.thaw()

        with pytest.raises(ConnectionLost) as told:
            await asyncio.wait_for(adding, 10)

        assert (told.value.outcome, len(told.value.job_ids)) == ("unknown", count)
        assert await held(raw) == (count + 1, 0)


@pytest.mark.needs("XCFGSET")
@pytest.mark.own_server
async def test_a_server_with_the_same_jobs_that_now_remembers_ids_adds_none_twice(
    proxy, raw, queue_name
):
    """A failover to a newer replica: it knows the token that the write left with."""
    await raw("ACL", "SETUSER", "default", "-xcfgset")
    async with Queue(queue_name, redis_url=proxy.url) as queue:
        await queue.add("warm", 0)
        proxy.drop_replies()
        adding = asyncio.ensure_future(queue.add_bulk(bulk(300)))
        await eventually(lambda: proxy.dropped_bytes)
        await raw("ACL", "SETUSER", "default", "+xcfgset")
        proxy.cut()
        proxy.thaw()

        await asyncio.wait_for(adding, 10)

        assert (await queue._store().abilities()).idempotent_add
        assert await held(raw) == (301, 0)


PARTLY = NEW | {"XADD": (ENTRY_ID, READONLY, ENTRY_ID)}
UNCOPIED = NEW | {"SCRIPT": b"$1\r\na\r\n", "SET": READONLY, "WAIT": READONLY}


@pytest.mark.parametrize(
    ("answers", "options"),
    [(PARTLY, {}), (UNCOPIED, {"durability": "replica:1"})],
    ids=["a part was added", "all was added, and no copies were waited for"],
)
async def test_what_a_server_added_before_it_refused_is_not_encoded_anew(
    queue_name, answers, options
):
    old = OLD | {"EVALSHA": MARKS, "SCRIPT": b"$1\r\na\r\n", "SET": b"+OK\r\n", "WAIT": b":1\r\n"}
    async with (
        FakeServer(answers) as first,
        FakeServer(old) as second,
        FaultProxy(first.url) as at,
        Queue(queue_name, redis_url=at.url, **options) as queue,
    ):
        adding = asyncio.ensure_future(queue.add_bulk(bulk(3)))
        await eventually(lambda: first.count("XADD"))
        at.lead_to(second.url)

        with pytest.raises(ConnectionLost) as told:
            await asyncio.wait_for(adding, 10)

        assert (told.value.outcome, len(told.value.job_ids)) == ("unknown", 3)
        assert not second.count("XADD")
