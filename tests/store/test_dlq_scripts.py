"""replay.lua and purge.lua: each entry once, whatever is sent twice, and all or nothing."""

from __future__ import annotations

import pytest

from chasquimq import Queue
from chasquimq.errors import StoreError
from chasquimq.store.net.script import script
from chasquimq.wire.envelope import encode_envelope
from chasquimq.wire.stream_entry import encode_dlq
from support.faultproxy import LosesOneReply

TTL_S = 60


@pytest.fixture
def bury(raw):
    """Put entries into the DLQ; answers their ids."""

    async def put(count: int = 1) -> list[bytes]:
        envelopes = [encode_envelope(f"job {at}", b"\x01", 1, 3) for at in range(count)]
        rows = [encode_dlq(envelope, "1-1", "unrecoverable") for envelope in envelopes]
        return [await raw("XADD", raw.keys.dlq, "*", *row) for row in rows]

    return put


@pytest.fixture
def replay(run, raw):
    """One call: entries are (dlq id, envelope, name, job id)."""

    async def call(*entries, token="t1", ttl_s=TTL_S):
        outcomes = [raw.keys.outcome(job_id) for *_, job_id in entries]
        keys = [raw.keys.dlq, raw.keys.stream, raw.keys.token(token), *outcomes]
        return await run("replay", keys, ttl_s, *[part for e in entries for part in e[:3]])

    return call


@pytest.fixture
def purge(run, raw):
    async def call(*ids, token="t1", ttl_s=TTL_S):
        return await run("purge", [raw.keys.dlq, raw.keys.token(token)], ttl_s, *ids)

    return call


@pytest.fixture
async def full_server(raw):
    """Let the server have no memory left until the test ends."""

    async def fill() -> None:
        await raw("CONFIG", "SET", "maxmemory", "1")

    yield fill
    await raw("CONFIG", "SET", "maxmemory", "0")


async def fields(raw) -> list[dict[bytes, bytes]]:
    return [row for _, row in await raw.entries(raw.keys.stream)]


async def test_entries_go_from_the_dlq_to_the_stream_in_order(bury, replay, raw):
    first, second = await bury(2)

    marks = await replay((first, "e1", "greet", "a"), (second, "e2", "", "b"))

    assert marks == [1, 1]
    assert await fields(raw) == [{b"d": b"e1", b"n": b"greet"}, {b"d": b"e2"}]
    assert await raw("XLEN", raw.keys.dlq) == 0


async def test_an_entry_that_is_gone_is_not_replayed(bury, replay, raw):
    first, second = await bury(2)
    await raw("XDEL", raw.keys.dlq, first)

    marks = await replay((first, "e1", "", "a"), (second, "e2", "", "b"))

    assert marks == [0, 1]
    assert await fields(raw) == [{b"d": b"e2"}]


async def test_an_entry_twice_in_one_call_is_replayed_once(bury, replay, raw):
    (only,) = await bury()

    assert await replay((only, "e1", "", "a"), (only, "e1", "", "a")) == [1, 0]
    assert await raw("XLEN", raw.keys.stream) == 1


async def test_a_replay_forgets_how_the_job_ended(bury, replay, raw):
    first, second = await bury(2)
    await raw("XDEL", raw.keys.dlq, second)
    await raw("MSET", raw.keys.outcome("a"), "dead", raw.keys.outcome("b"), "dead")

    await replay((first, "e1", "", "a"), (second, "e2", "", "b"))

    assert await raw("EXISTS", raw.keys.outcome("a")) == 0
    assert await raw("EXISTS", raw.keys.outcome("b")) == 1


async def test_a_replay_sent_again_answers_what_the_first_did_and_moves_nothing(
    bury, replay, raw, snapshot
):
    first, second = await bury(2)
    await raw("XDEL", raw.keys.dlq, first)
    call = [(first, "e1", "", "a"), (second, "e2", "", "b")]
    marks = await replay(*call)
    before = await snapshot()

    again = await replay(*call)

    assert again == marks == [0, 1]
    assert await snapshot() == before


async def test_another_token_is_another_replay(bury, replay):
    (only,) = await bury()
    await replay((only, "e1", "", "a"))

    assert await replay((only, "e1", "", "a"), token="t2") == [0]


async def test_a_replay_is_remembered_for_its_time_only(bury, replay, raw):
    (only,) = await bury()
    await replay((only, "e1", "", "a"))

    assert TTL_S - 5 <= await raw("TTL", raw.keys.token("t1")) <= TTL_S


async def test_a_hundred_entries_of_ten_kibibytes_fit_one_replay(bury, replay, raw):
    ids = await bury(100)

    marks = await replay(*((one, "x" * 10_240, "n", f"job {at}") for at, one in enumerate(ids)))

    assert marks == [1] * 100
    assert await raw("XLEN", raw.keys.stream) == 100


async def test_a_replay_of_nothing_is_refused(replay, snapshot):
    with pytest.raises(StoreError, match="threes"):
        await replay()

    assert await snapshot() == {}


async def test_entries_that_do_not_come_in_threes_are_refused(bury, run, raw, snapshot):
    (only,) = await bury()
    keys = [raw.keys.dlq, raw.keys.stream, raw.keys.token("t1"), raw.keys.outcome("a")]
    before = await snapshot()

    with pytest.raises(StoreError, match="threes"):
        await run("replay", keys, TTL_S, only, "e1", "", only)

    assert await snapshot() == before


async def test_an_entry_without_a_key_for_its_outcome_is_refused(bury, run, raw, snapshot):
    (only,) = await bury()
    before = await snapshot()

    with pytest.raises(StoreError, match="outcome"):
        await run("replay", [raw.keys.dlq, raw.keys.stream, "t"], TTL_S, only, "e1", "")

    assert await snapshot() == before


@pytest.mark.parametrize("bad", ["", "-", "+", "1", "(1-1", "1-x", "99999999999999999999-0"])
async def test_a_bad_id_is_refused_before_anything_is_moved(bury, replay, snapshot, bad):
    (good,) = await bury()
    before = await snapshot()

    with pytest.raises(StoreError):
        await replay((good, "e1", "", "a"), (bad, "e2", "", "b"))

    assert await snapshot() == before


@pytest.mark.parametrize("ttl_s", ["0", "-1", "1.5", "soon", "nan"])
async def test_a_replay_that_cannot_be_remembered_is_refused(bury, replay, snapshot, ttl_s):
    (only,) = await bury()
    before = await snapshot()

    with pytest.raises(StoreError):
        await replay((only, "e1", "", "a"), ttl_s=ttl_s)

    assert await snapshot() == before


@pytest.mark.parametrize("place", ["dlq", "stream"])
async def test_a_key_of_the_wrong_type_leaves_everything_as_it_was(raw, replay, snapshot, place):
    await raw("SET", getattr(raw.keys, place), "not a stream")
    before = await snapshot()

    with pytest.raises(StoreError, match="WRONGTYPE"):
        await replay(("1-1", "e1", "", "a"))

    assert await snapshot() == before


async def test_a_replay_works_when_the_server_is_out_of_memory(bury, replay, raw, full_server):
    (only,) = await bury()
    await full_server()

    assert await replay((only, "e1", "", "a")) == [1]
    assert await raw("XLEN", raw.keys.stream) == 1


async def test_a_purge_deletes_what_it_names_and_counts_it(bury, purge, raw):
    first, second, third = await bury(3)

    assert await purge(first, third, "1-1") == 2
    assert [entry_id for entry_id, _ in await raw.entries(raw.keys.dlq)] == [second]


async def test_a_purge_sent_again_answers_what_the_first_did(bury, purge, raw):
    first, _ = await bury(2)
    assert await purge(first) == 1

    assert await purge(first) == 1
    assert await purge(first, token="t2") == 0
    assert await raw("XLEN", raw.keys.dlq) == 1


async def test_a_purge_is_remembered_for_its_time_only(bury, purge, raw):
    await purge(*await bury())

    assert TTL_S - 5 <= await raw("TTL", raw.keys.token("t1")) <= TTL_S


async def test_a_thousand_entries_fit_one_purge(bury, purge):
    assert await purge(*await bury(1_000)) == 1_000


@pytest.mark.parametrize("count", [0, 1_001])
async def test_a_purge_of_too_few_or_too_many_is_refused(bury, purge, snapshot, count):
    await bury()
    before = await snapshot()

    with pytest.raises(StoreError, match="1 to 1000"):
        await purge(*["1-1"] * count)

    assert await snapshot() == before


@pytest.mark.parametrize("bad", ["", "-", "x", "99999999999999999999-0"])
async def test_a_bad_id_is_refused_before_anything_is_deleted(bury, purge, snapshot, bad):
    (good,) = await bury()
    before = await snapshot()

    with pytest.raises(StoreError):
        await purge(good, bad)

    assert await snapshot() == before


@pytest.mark.parametrize("ttl_s", ["0", "-1", "1.5", "soon", "nan"])
async def test_a_purge_that_cannot_be_remembered_is_refused(bury, purge, snapshot, ttl_s):
    (only,) = await bury()
    before = await snapshot()

    with pytest.raises(StoreError):
        await purge(only, ttl_s=ttl_s)

    assert await snapshot() == before


async def test_a_purge_works_when_the_server_is_out_of_memory(bury, purge, raw, full_server):
    (only,) = await bury()
    await full_server()

    assert await purge(only) == 1


@pytest.fixture
async def unlucky(url, raw, queue_name):
    """A queue behind a proxy that loses the reply to one call of a script."""
    async with LosesOneReply(url) as proxy, Queue(queue_name, redis_url=proxy.url) as queue:
        await queue.peek_dlq()

        async def lose(name: str) -> Queue:
            await raw("SCRIPT", "LOAD", script(name).text)
            proxy.lost = script(name).sha.encode()
            return queue

        yield lose
        assert proxy.accept_count == 2


async def test_a_replay_whose_reply_is_lost_replays_each_job_once(bury, unlucky, raw):
    ids = await bury(150)
    queue = await unlucky("replay")

    replayed = await queue.replay_dlq(1_000)

    assert replayed == 150
    assert replayed.ids == [one.decode() for one in ids]
    assert await raw("XLEN", raw.keys.stream) == 150


async def test_a_purge_whose_reply_is_lost_counts_each_entry_once(bury, unlucky, raw):
    await bury(150)
    queue = await unlucky("purge")

    assert await queue.purge_dlq(all=True) == 150
    assert await raw("XLEN", raw.keys.dlq) == 0
