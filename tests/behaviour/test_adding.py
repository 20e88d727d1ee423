"""Adding jobs: in order, in few writes, under a cap, counted, and refused after closing."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from chasquimq import BackoffSpec, Queue
from chasquimq.errors import (
    PayloadTooLarge,
    QueueFull,
    ServerOutOfMemory,
    ServerUnreachable,
    StoreError,
)
from chasquimq.settings import AbilitySettings
from chasquimq.store.producer.writes import AddMark
from chasquimq.wire.envelope import decode_envelope, split_envelope
from chasquimq.wire.payload import decode_payload
from support.faultproxy import FaultProxy
from support.waiting import eventually

SCRIPTS_ONLY = AbilitySettings(idempotent_add=False)
# The first leaves at once, the others in parts of at least 40.
WRITES_PER_HUNDRED_MAX = 3


@pytest.fixture(params=[AbilitySettings(), SCRIPTS_ONLY], ids=["as probed", "by script"])
def abilities(request) -> AbilitySettings:
    return request.param


@pytest.fixture
async def adding(url, queue_name, abilities):
    async with Queue(queue_name, redis_url=url, abilities=abilities) as queue:
        yield queue


@pytest.fixture
async def capped(url, queue_name, abilities):
    """Queues with a cap; all are closed when the test ends."""
    queues = []

    def make(cap: int) -> Queue:
        queues.append(Queue(queue_name, redis_url=url, abilities=abilities, max_stream_len=cap))
        return queues[-1]

    yield make
    for queue in queues:
        await queue.close()


def bulk(count: int) -> list[dict]:
    return [{"name": "n", "data": i} for i in range(count)]


async def envelopes(raw):
    return [decode_envelope(row[b"d"]) for _, row in await raw.entries(raw.keys.stream)]


async def payloads(raw) -> list:
    return [decode_payload(envelope.payload) for envelope in await envelopes(raw)]


# what is added


async def test_an_added_job_is_in_the_stream_as_it_was_given(adding, raw):
    data = {"to": "ada", "tags": ["a", 1, None, True, 1.5], "raw": b"\x00\xff"}

    job = await adding.add("greet", data)

    ((_, row),) = await raw.entries(raw.keys.stream)
    envelope = decode_envelope(row[b"d"])
    assert row[b"n"] == b"greet"
    assert (envelope.id, envelope.attempt, envelope.retry) == (job.id, 0, None)
    assert envelope.created_at_ms == job.created_at_ms
    assert decode_payload(envelope.payload) == data
    assert (job.name, job.data, job.attempt, job.is_duplicate) == ("greet", data, 0, False)


async def test_a_job_carries_its_own_budget_and_limits(adding, raw):
    await adding.add(
        "n", 1, attempts=3, backoff=BackoffSpec.fixed(250), expires_ms=5_000, timeout_ms=90
    )

    ((_, row),) = await raw.entries(raw.keys.stream)
    envelope, extras = split_envelope(row[b"d"])
    assert envelope.retry.max_attempts == 3
    assert (envelope.retry.backoff.kind, envelope.retry.backoff.delay_ms) == ("fixed", 250)
    assert extras == {"expires_ms": 5_000, "timeout_ms": 90}


async def test_a_bulk_keeps_its_order(adding, raw):
    jobs = await adding.add_bulk(bulk(2_500))

    found = await envelopes(raw)
    assert [envelope.id for envelope in found] == [job.id for job in jobs]
    assert [decode_payload(envelope.payload) for envelope in found] == list(range(2_500))


async def test_one_producers_adds_keep_their_order(adding, raw):
    for number in range(20):
        await adding.add("n", number)
    await asyncio.gather(*(adding.add("n", number) for number in range(20, 120)))

    assert await payloads(raw) == list(range(120))


async def test_an_empty_bulk_is_no_bulk(adding, raw):
    assert await adding.add_bulk([]) == []
    assert await raw("EXISTS", raw.keys.stream) == 0


async def test_a_bulk_larger_than_a_write_may_be_leaves_in_several(adding, raw):
    jobs = await adding.add_bulk([{"name": "n", "data": "x" * 300_000}] * 10)

    assert len({job.id for job in jobs}) == 10
    assert await raw("XLEN", raw.keys.stream) == 10


async def test_a_payload_as_large_as_allowed_is_added(adding, raw):
    # Five bytes of the MiB spell the length.
    await adding.add("n", b"x" * (1024 * 1024 - 5))

    assert await raw("XLEN", raw.keys.stream) == 1


async def test_a_payload_one_byte_larger_is_not(adding, raw):
    with pytest.raises(PayloadTooLarge, match="at most 1048576 bytes, got 1048577"):
        await adding.add("n", b"x" * (1024 * 1024 - 4))

    assert await raw("EXISTS", raw.keys.stream) == 0


# few writes


async def test_a_hundred_concurrent_adds_leave_in_few_writes(url, queue_name, abilities, raw):
    async with (
        FaultProxy(url) as proxy,
        Queue(queue_name, redis_url=proxy.url, abilities=abilities) as queue,
    ):
        await queue.add("warm", -1)
        before = proxy.write_count

        await asyncio.gather(*(queue.add("n", number) for number in range(100)))

        assert 1 <= proxy.write_count - before <= WRITES_PER_HUNDRED_MAX
    assert await payloads(raw) == list(range(-1, 100))


async def test_a_hundred_concurrent_adds_are_few_script_calls(url, queue_name, raw):
    async with Queue(queue_name, redis_url=url, abilities=SCRIPTS_ONLY) as queue:
        await queue.add("warm", 0)
        before = await tokens(raw)

        await asyncio.gather(*(queue.add("n", number) for number in range(100)))

        assert 1 <= await tokens(raw) - before <= WRITES_PER_HUNDRED_MAX


async def test_adds_that_came_together_leave_together_the_next_time(url, queue_name, raw):
    async with Queue(queue_name, redis_url=url, abilities=SCRIPTS_ONLY) as queue:
        await queue.add("warm", 0)
        await asyncio.gather(*(queue.add("n", number) for number in range(10)))
        before = await tokens(raw)

        await asyncio.gather(*(queue.add("n", number) for number in range(10)))

        assert await tokens(raw) - before == 1


async def test_an_add_leaves_before_anything_is_waited_for(adding):
    await adding.add("warm", -1)
    store, new = adding._store(), adding._encoder.plain("n", 1, "id-1", 1)

    under_way = store.add(new, 1)

    assert store.connection.current.has_unanswered
    assert await under_way is AddMark.ADDED


async def test_a_bulk_is_on_its_way_while_the_caller_makes_its_answer(adding, raw):
    await adding.add("warm", -1)
    store, encoder = adding._store(), adding._encoder
    jobs = [encoder.encode(spec, f"id-{at}", 1) for at, spec in enumerate(bulk(300))]

    under_way = store.add_many(jobs, 1)
    await eventually(lambda: arrived(raw, 301), what="the bulk without its caller")

    assert await under_way == [AddMark.ADDED] * 300
    assert store.unconfirmed_jobs.try_enter(10_000)
    assert await payloads(raw) == list(range(-1, 300))


@pytest.mark.parametrize("resend", [True, False])
async def test_a_bulk_under_way_teaches_a_server_that_forgot_the_script(
    url, queue_name, raw, resend
):
    async with Queue(
        queue_name, redis_url=url, abilities=SCRIPTS_ONLY, max_stream_len=100, resend=resend
    ) as queue:
        await queue.add("warm", -1)
        await raw("SCRIPT", "FLUSH")

        await queue.add_bulk(bulk(50))

    assert await payloads(raw) == list(range(-1, 50))


async def arrived(raw, count: int) -> bool:
    return await raw("XLEN", raw.keys.stream) == count


async def tokens(raw) -> int:
    """Every script call of ours leaves the token of its write."""
    return len(await raw("KEYS", raw.keys.token("*")))


# under a cap


async def test_a_full_queue_refuses_one_more_and_says_what_to_do(capped, raw):
    queue = capped(2)
    await queue.add("n", 1)
    await queue.add("n", 2)

    with pytest.raises(QueueFull) as caught:
        await queue.add("n", 3)

    assert str(caught.value) == (
        f"queue {queue.name!r} may hold at most 2 jobs and has no room for 1 more; "
        "slow down, add workers or raise max_stream_len"
    )
    assert (caught.value.max_stream_len, len(caught.value.job_ids)) == (2, 1)
    assert await payloads(raw) == [1, 2]


async def test_a_bulk_that_does_not_fit_is_refused_whole(capped, raw):
    queue = capped(5)
    await queue.add("n", -1)

    with pytest.raises(QueueFull) as caught:
        await queue.add_bulk(bulk(5))

    assert len(caught.value.job_ids) == 5
    assert await payloads(raw) == [-1]


async def test_a_bulk_that_just_fits_is_added_whole(capped, raw):
    await capped(5).add_bulk(bulk(5))

    assert await payloads(raw) == list(range(5))


async def test_a_time_that_has_passed_is_no_way_around_the_cap(capped, raw):
    queue = capped(1)
    past, to_come = datetime(2001, 9, 9, tzinfo=UTC), timedelta(hours=1)
    await queue.add("n", 1)

    with pytest.raises(QueueFull) as caught:
        await queue.add("n", 2, delay_ms=past)
    waiting = await queue.add("n", 3, delay=to_come)

    assert len(caught.value.job_ids) == 1
    assert await payloads(raw) == [1]
    assert await raw("HKEYS", raw.keys.dix) == [waiting.id.encode()]


async def test_a_hundred_adds_with_room_for_fifty_add_exactly_fifty(capped, raw):
    queue = capped(50)

    answers = await asyncio.gather(
        *(queue.add("n", number) for number in range(100)), return_exceptions=True
    )

    refused = [answer for answer in answers if isinstance(answer, QueueFull)]
    added = {answer.id for answer in answers if not isinstance(answer, Exception)}
    assert (len(refused), len(added)) == (50, 50)
    assert {envelope.id for envelope in await envelopes(raw)} == added
    assert not added & {job_id for error in refused for job_id in error.job_ids}


async def test_two_producers_share_one_cap(capped, raw):
    first, second = capped(30), capped(30)

    await asyncio.gather(
        *(queue.add("n", number) for number in range(30) for queue in (first, second)),
        return_exceptions=True,
    )

    assert await raw("XLEN", raw.keys.stream) == 30


async def test_there_is_room_again_when_jobs_have_run(capped, running_worker, raw):
    queue = capped(1)
    ran = asyncio.Event()
    await queue.add("n", 1)

    async def handler(_job) -> None:
        ran.set()

    worker = await running_worker(handler)
    await asyncio.wait_for(ran.wait(), 10)
    await worker.stop()

    assert (await queue.add("n", 2)).name == "n"


# servers that cannot


@pytest.mark.own_server
async def test_a_server_without_memory_takes_nothing_and_says_so(url, raw, queue_name, abilities):
    async with Queue(queue_name, redis_url=url, abilities=abilities) as queue:
        await queue.add("n", 0)
        await raw("CONFIG", "SET", "maxmemory", 1)

        answers = await asyncio.gather(
            queue.add("n", 1),
            queue.add("n", 2, job_id="own"),
            queue.add("n", 3, delay_ms=1_000),
            queue.add_bulk(bulk(3)),
            return_exceptions=True,
        )

        assert {type(answer) for answer in answers} == {ServerOutOfMemory}
        assert [len(answer.job_ids) for answer in answers] == [1, 1, 1, 3]
        said = str(answers[0])
        assert said.startswith("the server must have memory for the write, it says: OOM command")
        assert said.endswith("; raise maxmemory, or let the workers drain the queue")
        assert await raw("XLEN", raw.keys.stream) == 1
        assert await raw("EXISTS", raw.keys.delayed, raw.keys.uniq("own")) == 0


@pytest.mark.own_server
async def test_adds_go_on_when_memory_returns(url, raw, queue_name, abilities):
    async with Queue(queue_name, redis_url=url, abilities=abilities) as queue:
        await queue.add("n", 0)
        await raw("CONFIG", "SET", "maxmemory", 1)
        with pytest.raises(ServerOutOfMemory):
            await queue.add("n", 1)
        await raw("CONFIG", "SET", "maxmemory", 0)

        await queue.add("n", 1)

        assert await raw("XLEN", raw.keys.stream) == 2


async def test_no_server_is_one_clear_sentence(queue_name):
    async with Queue(queue_name, redis_url="redis://127.0.0.1:1/3") as queue:
        with pytest.raises(ServerUnreachable) as caught:
            await queue.add("n", 1)

    said = str(caught.value)
    assert said.startswith("a server must answer at redis://127.0.0.1:1/3, found none (")
    assert said.endswith("; start one with `chasqui server start`, or correct the URL")
    assert "\n" not in said


# counting and closing


async def test_counts_tell_where_jobs_are(adding, raw, running_worker):
    release = asyncio.Event()

    async def wait_or_fail(job) -> None:
        if job.name == "fail":
            raise ValueError("no")
        await release.wait()

    await adding.add_bulk([{"name": "wait", "data": i} for i in range(3)])
    await adding.add("later", 1, delay_ms=60_000)
    await adding.add("fail", 1, attempts=1)
    worker = await running_worker(wait_or_fail, concurrency=10)

    async def is_settled():
        counts = await adding.counts()
        return counts if (counts.running, counts.dead) == (3, 1) else None

    counts = await eventually(is_settled, what="three running and one dead")

    assert (counts.ready, counts.running, counts.delayed, counts.dead) == (0, 3, 1, 1)
    assert counts.backlog == 4
    release.set()
    await worker.stop()


async def test_an_empty_queue_counts_to_nothing(adding):
    counts = await adding.counts()

    assert (counts.ready, counts.running, counts.delayed, counts.dead) == (0, 0, 0, 0)


async def test_counts_work_on_a_queue_that_only_strangers_fed(adding, raw):
    await raw("XADD", raw.keys.stream, "*", "d", "no group yet")

    assert (await adding.counts()).ready == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda queue: queue.add("n", 1),
        lambda queue: queue.add_unique("n", 1, job_id="id"),
        lambda queue: queue.add_bulk(bulk(1)),
        lambda queue: queue.counts(),
        lambda queue: queue.cancel_delayed("id"),
    ],
    ids=["add", "add_unique", "add_bulk", "counts", "cancel_delayed"],
)
async def test_a_closed_queue_refuses_every_call(adding, call):
    await adding.add("n", 1)
    await adding.close()

    assert adding.is_closed
    with pytest.raises(StoreError, match="must be open and is closed; open a new Queue"):
        await call(adding)


async def test_a_queue_may_be_closed_twice_and_unused(adding):
    await adding.close()
    await adding.close()

    assert adding.is_closed


class Spoiled(dict):
    """Reads well while it is checked, and never again."""

    reads_left = 1

    def __getitem__(self, key):
        if key == "data":
            self.reads_left -= 1
            if self.reads_left < 0:
                raise ValueError("spoiled")
        return super().__getitem__(key)


async def test_a_mapping_that_raises_when_read_again_leaves_nothing_half_sent(adding, raw):
    await adding.add("warm", -1)

    with pytest.raises(ValueError, match="spoiled"):
        await adding.add_bulk([Spoiled(name="n", data=0)])

    assert await raw("XLEN", raw.keys.stream) == 1
    assert adding._store().unconfirmed_jobs.try_enter(10_000)
