"""An add is answered within its time, and what it heard stays true whatever comes after."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from types import MappingProxyType

import msgspec
import pytest

from chasquimq import Job, Queue
from chasquimq.errors import (
    ConnectionLost,
    LimitExceeded,
    ServerRefused,
    ServerUnreachable,
    StoreError,
)
from chasquimq.settings import AbilitySettings
from store.fake_server import OLD, FakeServer
from support.waiting import eventually, patience

ROUNDS = 60 if os.environ.get("CHASQUI_TEST_BIG") == "1" else 8
LOADING = b"-LOADING the server reads its data\r\n"


@pytest.fixture(params=[None, False], ids=["as probed", "by script"])
async def queue(request, queue_name, proxy):
    """A queue that has connected, through a proxy that may misbehave."""
    abilities = AbilitySettings(idempotent_add=request.param)
    async with Queue(queue_name, redis_url=proxy.url, abilities=abilities) as queue:
        await queue.add("warm", 0)
        yield queue


async def ids_there(raw) -> Counter:
    """The ids of all jobs that are in the queue, ready and delayed."""
    entries = await raw("XRANGE", raw.keys.stream, "-", "+")
    envelopes = [fields[fields.index(b"d") + 1] for _, fields in entries]
    members = await raw("ZRANGE", raw.keys.delayed, 0, -1)
    envelopes += [member[4 + int.from_bytes(member[:4], "little") :] for member in members]
    return Counter(msgspec.msgpack.decode(one)[0] for one in envelopes)


async def added_at_once(queue) -> Job | None:
    try:
        return await queue.add("after", 0, add_timeout_ms=0)
    except ServerUnreachable:
        return None


async def ended(call) -> object:
    try:
        return await call
    except StoreError as error:
        return error


async def until_gone(queue, proxy) -> None:
    """Refuse all, and wait until the queue knows."""
    proxy.refuse()
    proxy.cut()
    await eventually(lambda: not queue._store().connection.is_up)


WAYS = {
    "add": lambda queue, **options: queue.add("n", 1, **options),
    "add_unique": lambda queue, **options: queue.add_unique("n", 1, job_id="own", **options),
    "delayed": lambda queue, **options: queue.add("n", 1, delay_ms=60_000, **options),
    "add_bulk": lambda queue, **options: queue.add_bulk([{"name": "n", "data": 1}], **options),
}


@pytest.mark.parametrize("way", WAYS)
async def test_an_add_that_was_said_not_to_be_done_never_comes_after(queue, proxy, raw, way):
    await until_gone(queue, proxy)
    began_s = time.monotonic()

    with pytest.raises(ConnectionLost, match=r"within 0.2 s \(add_timeout_ms\)") as caught:
        await WAYS[way](queue, add_timeout_ms=200)

    assert time.monotonic() - began_s < 0.3 * patience()
    assert (caught.value.outcome, len(caught.value.job_ids)) == ("not_done", 1)
    assert proxy.url in str(caught.value)
    await proxy.accept()
    await queue.add("after", 0)
    assert caught.value.job_ids[0] not in await ids_there(raw)


@pytest.mark.parametrize("way", WAYS)
async def test_an_add_that_left_and_was_not_answered_is_unknown(queue, proxy, raw, way):
    await WAYS[way](queue)  # the server knows the script from now on
    before = await ids_there(raw)
    proxy.drop_replies()

    options = {} if way != "add_unique" else {"unique_for_ms": 1}
    with pytest.raises(ConnectionLost, match="may be added or not") as caught:
        await WAYS[way](queue, add_timeout_ms=200, **options)

    assert caught.value.outcome == "unknown"
    assert ("same job_id is safe" in str(caught.value)) is (way == "add_unique")
    proxy.thaw()
    await eventually(lambda: has_more(raw, before))
    proxy.cut()
    await eventually(lambda: queue.unconfirmed_bytes == 0)


@pytest.mark.needs("WAITAOF")
@pytest.mark.own_server(aof="always")
@pytest.mark.parametrize("is_bulk", [False, True], ids=["add", "add_bulk"])
async def test_a_durable_add_without_an_answer_may_be_added(proxy, raw, queue_name, is_bulk):
    async with Queue(queue_name, redis_url=proxy.url, durability="fsync") as queue:
        await queue.add("first", 0)
        before = await ids_there(raw)
        proxy.drop_replies()
        job = {"name": "a", "data": 1}
        with pytest.raises(ConnectionLost, match="may be added or not") as caught:
            await (
                queue.add_bulk([job], add_timeout_ms=300)
                if is_bulk
                else queue.add(**job, add_timeout_ms=300)
            )

        assert caught.value.outcome == "unknown"
        proxy.thaw()
        await eventually(lambda: has_more(raw, before))
        proxy.cut()
        await eventually(lambda: queue.unconfirmed_bytes == 0)


@pytest.mark.parametrize("way", WAYS)
async def test_an_add_that_came_too_late_says_how_the_last_dial_ended(queue, proxy, way):
    await until_gone(queue, proxy)
    with pytest.raises(ServerUnreachable):
        await queue.add("first", 1, add_timeout_ms=0)  # hears how the dial ended

    with pytest.raises(ConnectionLost, match=r"found none .* nothing was added") as caught:
        await WAYS[way](queue, add_timeout_ms=200)

    assert f"and did not ({caught.value.__cause__}); nothing" in str(caught.value)


@pytest.mark.parametrize("own_ms", [None, 0], ids=["its queue", "the add"])
async def test_an_add_that_does_not_wait_names_the_limit_of_a_command(queue_name, proxy, own_ms):
    async with Queue(
        queue_name, redis_url=proxy.url, command_timeout_ms=300,
        add_timeout_ms=0 if own_ms is None else 5_000,
    ) as queue:  # fmt: skip
        await queue.add("warm", 0)
        proxy.drop_replies()

        with pytest.raises(ConnectionLost, match=r"within 0.3 s \(command_timeout_ms\) and did"):
            await queue.add("n", 1, add_timeout_ms=own_ms)


async def has_more(raw, before: Counter) -> bool:
    return (await ids_there(raw)).total() >= before.total()


async def test_of_adds_that_leave_together_those_that_gave_up_stay_behind(queue, proxy, raw):
    store = queue._store()
    store.unconfirmed_jobs._size_max = 1
    proxy.freeze()
    first = asyncio.ensure_future(queue.add("n", "first"))
    await asyncio.sleep(0)
    calls = [
        asyncio.ensure_future(queue.add("n", at, add_timeout_ms=100 if at % 2 else None))
        for at in range(6)
    ]
    gave_up = await asyncio.gather(*map(ended, calls[1::2]))
    quitter = calls[0]
    quitter.cancel()

    proxy.thaw()
    added = [job.id for job in await asyncio.gather(first, *calls[2::2])]

    assert {one.outcome for one in gave_up} == {"not_done"}
    there = await ids_there(raw)
    assert set(added) <= set(there)
    assert {one.job_ids[0] for one in gave_up} & set(there) == set()
    assert there.total() == 1 + len(added)
    assert store.unconfirmed_jobs._inside == 0
    assert queue.unconfirmed_bytes == 0


async def test_those_that_gave_up_while_the_server_loads_stay_behind(queue_name):
    script = {"EVALSHA": [LOADING] * 8 + [b"*2\r\n:1\r\n:1\r\n"]}
    async with (
        FakeServer(OLD | script) as server,
        Queue(queue_name, redis_url=server.url) as queue,
    ):
        await queue._store()._prepared_connection(queue._store().deadline())
        queue._store().sender._is_batching = True
        short = [asyncio.ensure_future(queue.add("short", at, add_timeout_ms=120)) for at in (1, 2)]
        long = [asyncio.ensure_future(queue.add("long", at)) for at in (3, 4)]

        ends = await asyncio.gather(*map(ended, short))
        await asyncio.wait_for(asyncio.gather(*long), 10)

        assert {type(end) for end in ends} == {ServerRefused}
        last = [command for command in server.commands if command[0] == b"EVALSHA"][-1]
        assert last.count(b"long") == 2
        assert b"short" not in last


@pytest.mark.parametrize("timeout_ms", [0, 300])
async def test_a_bulk_in_several_writes_names_what_is_not_there(queue, proxy, raw, timeout_ms):
    proxy.cut_after(400_000)
    cutting = asyncio.ensure_future(eventually(lambda: not queue._store().connection.is_up))
    cutting.add_done_callback(lambda _: proxy.refuse())

    jobs = [{"name": "n", "data": "x" * 150, "job_id": f"id-{at}"} for at in range(2_500)]
    with pytest.raises(ConnectionLost) as caught:
        await queue.add_bulk(jobs, add_timeout_ms=timeout_ms)

    await cutting
    await proxy.accept()
    await queue.add("after", 0)
    there, missing = await ids_there(raw), set(caught.value.job_ids)
    assert 0 < len(missing) < 2_500
    assert {f"id-{at}" for at in range(2_500)} - missing <= set(there)
    if caught.value.outcome == "not_done":
        assert not missing & set(there)


async def test_a_large_bulk_is_not_too_late_because_it_is_large(queue, proxy, raw):
    proxy.request_latency_s = 0.15

    await queue.add_bulk([{"name": "n", "data": at} for at in range(8_000)], add_timeout_ms=1_000)

    assert (await ids_there(raw)).total() == 8_001


async def test_a_server_that_refuses_is_not_waited_for_with_a_time_of_zero(queue, proxy, raw):
    await until_gone(queue, proxy)

    for way in WAYS.values():
        began_s = time.monotonic()
        with pytest.raises(ServerUnreachable) as caught:
            await way(queue, add_timeout_ms=0)
        assert time.monotonic() - began_s < 0.1 * patience()
        assert (caught.value.outcome, len(caught.value.job_ids)) == ("not_done", 1)

    await proxy.accept()
    # The background dials again in its own time; until then each of these is refused at once.
    job = await eventually(lambda: added_at_once(queue), what="an add without waiting")
    assert job.id in await ids_there(raw)


async def test_a_server_that_is_there_is_waited_for_with_a_time_of_zero(queue, proxy, raw):
    proxy.reply_latency_s = 0.1

    job = await queue.add("n", 1, add_timeout_ms=0)
    jobs = await queue.add_bulk([{"name": "n", "data": 1}], add_timeout_ms=0)

    assert {job.id, jobs[0].id} <= set(await ids_there(raw))


async def test_without_resend_nothing_waits_for_a_server_that_is_away(queue_name, proxy):
    async with Queue(queue_name, redis_url=proxy.url, resend=False) as queue:
        await queue.add("warm", 0)
        await until_gone(queue, proxy)
        for call in (*WAYS.values(), lambda queue: queue.cancel_delayed("nobody")):
            began_s = time.monotonic()
            with pytest.raises(ServerUnreachable):
                await call(queue)
            assert time.monotonic() - began_s < 0.1 * patience()


@pytest.mark.parametrize("value", [-1, 90_001, 1.5, "5", True])
async def test_a_time_that_ids_are_not_remembered_for_is_refused(queue_name, queue, value):
    with pytest.raises((LimitExceeded, ValueError), match="add_timeout_ms must be"):
        await queue.add("n", 1, add_timeout_ms=value)
    with pytest.raises((LimitExceeded, ValueError), match="add_timeout_ms must be"):
        Queue(queue_name, add_timeout_ms=value)


async def test_what_gave_up_keeps_its_bytes_until_nothing_of_it_can_leave(queue, proxy):
    proxy.freeze()
    data = "x" * 500_000

    ends = await asyncio.gather(*[
        ended(queue.add("n", data, add_timeout_ms=100)),
        ended(queue.add_bulk([{"name": "n", "data": data}] * 3, add_timeout_ms=100)),
        ended(queue.add_unique("n", data, job_id="own", add_timeout_ms=100)),
    ])  # fmt: skip

    assert {end.outcome for end in ends} == {"unknown"}
    assert queue.unconfirmed_bytes > 2_000_000
    proxy.thaw()
    await eventually(lambda: queue.unconfirmed_bytes == 0)
    assert queue._store().unconfirmed_jobs._inside == 0


async def test_what_gave_up_before_it_left_gives_its_bytes_back_at_once(queue, proxy):
    await queue.add("n", 0)
    proxy.freeze()
    small = [{"name": "n", "data": 0}] * 1_000
    # As many jobs as may be unconfirmed.
    sent = [asyncio.ensure_future(ended(queue.add_bulk(small))) for _ in range(10)]
    await eventually(lambda: queue._store().unconfirmed_jobs._inside == 10_000)
    before = queue.unconfirmed_bytes

    end = await ended(queue.add_bulk([{"name": "n", "data": "x" * 500_000}], add_timeout_ms=100))

    assert end.outcome == "not_done"
    await eventually(lambda: queue.unconfirmed_bytes == before, within_s=2)
    proxy.thaw()
    assert all([len(await one) == 1_000 for one in sent])


class Storm:
    """Adds of every kind, each with a time of its own, and what became of them."""

    def __init__(self, queue, dice: random.Random) -> None:
        self._queue, self._dice = queue, dice
        self.answers: list[object] = []

    async def add(self, at: int) -> None:
        choice = self._dice.choice
        count = choice([1, 1, 3, 700])
        way, options = (
            choice(list(self.WAYS)),
            {"add_timeout_ms": choice([0, 20, 60, 150, 400, 800])},
        )
        self.answers.append(await ended(self.WAYS[way](self, at, count, **options)))

    async def _one(self, at: int, _: int, **options) -> list:
        return [await self._queue.add("n", at, **options)]

    async def _fresh(self, at: int, count: int, **options) -> list:
        return await self._queue.add_bulk([{"name": "n", "data": at}] * count, **options)

    async def _own(self, at: int, count: int, **options) -> list:
        return await self._queue.add_bulk(self._own_ids(at, count), **options)

    async def _later(self, at: int, count: int, **options) -> list:
        jobs = [job | {"delay_ms": 60_000} for job in self._own_ids(at, count)]
        return await self._queue.add_bulk(jobs, **options)

    def _own_ids(self, at: int, count: int) -> list[dict]:
        return [{"name": "n", "data": at, "job_id": f"{at}-{place}"} for place in range(count)]

    WAYS = MappingProxyType(
        {"one": _one, "shared": _one, "fresh": _fresh, "own": _own, "later": _later}
    )

    def added(self) -> list[str]:
        return [job.id for jobs in self.answers if isinstance(jobs, list) for job in jobs]

    def ids(self, outcome: str) -> list[str]:
        errors = [one for one in self.answers if getattr(one, "outcome", None) == outcome]
        return [job_id for error in errors for job_id in error.job_ids]


@pytest.mark.timeout(300)
async def test_what_adds_heard_is_true_after_any_number_of_cuts(queue, proxy, raw, monkeypatch):
    # A connection that breaks soon would be dialled ever more slowly.
    monkeypatch.setattr("chasquimq.store.net.connect._YOUNG_S", 0.0)
    seed = random.randrange(10**6)
    storm = Storm(queue, random.Random(seed))
    misbehaving = asyncio.ensure_future(misbehave(proxy, random.Random(seed)))
    # As long as it takes for adds to end in each of the three ways.
    for batch in range(40 * ROUNDS):
        await asyncio.gather(*(storm.add(batch * 20 + at) for at in range(20)))
        if batch >= ROUNDS - 1 and all(
            (storm.added(), storm.ids("not_done"), storm.ids("unknown"))
        ):
            break
    misbehaving.cancel()
    await asyncio.wait([misbehaving])
    await calm(proxy)
    await queue.add("after", 0, add_timeout_ms=30_000)

    added, never, unknown = storm.added(), storm.ids("not_done"), storm.ids("unknown")
    print(f"seed {seed}: {len(added)} added, {len(never)} not, {len(unknown)} unknown")
    there = await ids_there(raw)
    assert all((added, never, unknown))
    assert [one for one in added if one not in there] == []
    assert [one for one in never if one in there] == []
    assert [one for one, count in there.items() if count > 1] == []


async def misbehave(proxy, dice: random.Random) -> None:
    while True:
        await asyncio.sleep(dice.uniform(0.02, 0.4))
        match dice.randrange(5):
            case 0:
                proxy.cut()
            case 1:
                proxy.freeze()
                await asyncio.sleep(dice.uniform(0, 0.2))
                proxy.cut()
                proxy.thaw()
            case 2:
                proxy.drop_replies()
                await asyncio.sleep(dice.uniform(0, 0.1))
                proxy.cut()
                proxy.thaw()
            case 3:
                proxy.refuse()
                proxy.cut()
                await asyncio.sleep(dice.uniform(0, 0.4))
                await proxy.accept()
            case 4:
                proxy.cut_after(dice.randrange(20_000))


async def calm(proxy) -> None:
    proxy.thaw()
    proxy.refuse()
    await proxy.accept()
