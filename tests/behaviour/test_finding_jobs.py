"""get_job: wherever a job is, it is found there, and what was not looked at is told."""

from __future__ import annotations

import asyncio
import re
import time

import msgspec
import pytest

from chasquimq import UnrecoverableError
from chasquimq.errors import SettingsError, StoreError
from chasquimq.store.inspect.find_job import ENTRIES_MAX, FinderStore, fair_shares
from chasquimq.store.inspect.pages import ReadStore
from chasquimq.wire.envelope import encode_envelope
from chasquimq.wire.new_job import new_job_id
from chasquimq.wire.stream_entry import encode_member
from support.raw import Raw
from support.waiting import eventually

GROUP = "default"


@pytest.fixture
def read_by(raw):
    """Hand entries to a consumer; answers their ids."""

    async def read(consumer: str, count: int = 1) -> list[bytes]:
        stream = raw.keys.stream
        reply = await raw(
            "XREADGROUP", "GROUP", GROUP, consumer, "COUNT", count, "STREAMS", stream, ">"
        )
        return [entry[0] for entry in reply[0][1]]

    return read


@pytest.fixture
def find(queue):
    """Search with a budget of one's own."""

    async def search(job_id: str, entries_max: int):
        store = queue._store()
        return await FinderStore(store.keys, ReadStore(store.connection)).find(job_id, entries_max)

    return search


@pytest.fixture
async def group(raw):
    await raw("XGROUP", "CREATE", raw.keys.stream, GROUP, "0", "MKSTREAM")


def is_near_now(ms: int) -> bool:
    return abs(ms - time.time() * 1000) < 60_000


async def test_a_job_that_waits_for_a_worker_is_ready(queue, raw):
    job = await queue.add("greet", {"to": "ada"})

    found = await queue.get_job(job.id)

    ((entry_id, _),) = await raw.entries(raw.keys.stream)
    assert (found.job_id, found.state, found.name, found.attempt) == (job.id, "ready", "greet", 0)
    assert found.entry_id == entry_id.decode()
    assert (found.worker, found.since_ms, found.due_ms, found.reason) == (None, None, None, None)
    assert found.scanned_all


async def test_a_job_in_a_handler_is_running_at_its_worker(queue, running_worker):
    started, may_end = asyncio.Event(), asyncio.Event()

    async def handler(job):
        started.set()
        await may_end.wait()

    await running_worker(handler, consumer_id="w1")
    job = await queue.add("greet", 1)
    await started.wait()

    found = await queue.get_job(job.id)
    may_end.set()

    assert (found.state, found.worker, found.name, found.attempt) == ("running", "w1", "greet", 0)
    assert is_near_now(found.since_ms)


async def test_deliveries_before_this_one_count_as_attempts(queue, raw, group, read_by):
    job = await queue.add("greet", 1)
    (entry_id,) = await read_by("w1")
    await raw("XCLAIM", raw.keys.stream, GROUP, "w2", 0, entry_id, "RETRYCOUNT", 3)

    found = await queue.get_job(job.id)

    assert (found.state, found.worker, found.attempt) == ("running", "w2", 2)


async def test_a_job_that_was_handed_back_is_ready(queue, raw, group, read_by):
    job = await queue.add("greet", 1)
    (entry_id,) = await read_by("w1")
    await raw("XCLAIM", raw.keys.stream, GROUP, "returned", 0, entry_id, "RETRYCOUNT", 1, "JUSTID")

    found = await queue.get_job(job.id)

    assert (found.state, found.worker, found.attempt) == ("ready", None, 1)


async def test_a_ready_job_is_found_behind_running_ones(queue, raw, group, read_by):
    jobs = await queue.add_bulk([{"name": "a", "data": at} for at in range(3)])
    await read_by("w1", 2)

    assert [(await queue.get_job(job.id)).state for job in jobs] == ["running", "running", "ready"]


@pytest.mark.parametrize("own_id", [None, "order/7"], ids=["fresh id", "own id"])
async def test_a_delayed_job_tells_when_it_is_due(queue, own_id):
    job = await queue.add("later", 1, delay_ms=60_000, job_id=own_id)

    found = await queue.get_job(job.id)

    assert (found.state, found.name, found.attempt) == ("delayed", "later", 0)
    assert is_near_now(found.due_ms - 60_000)


async def test_a_delayed_job_is_found_among_thousands_due_at_the_same_time(queue, raw):
    due_ms = int(time.time() * 1000) + 60_000
    for at in range(2_500):
        member = encode_member("n", encode_envelope(f"j{at}", b"\x01", 1))
        await raw("ZADD", raw.keys.delayed, due_ms, member)
    await raw("HSET", raw.keys.dix, "j2345", due_ms)

    found = await queue.get_job("j2345")

    assert (found.state, found.due_ms) == ("delayed", due_ms)


async def test_a_delayed_job_is_found_by_halves_among_any_number_due_at_the_same_time(queue, raw):
    due_ms, crowd = 4_000_000_000_000, 3 * ENTRIES_MAX
    for at in range(0, crowd, 5_000):
        ids = [f"{one:032x}" for one in range(at, at + 5_000)]
        names = [("greet", "a longer name")[one % 2] for one in range(5_000)]
        members = map(encode_member, names, [encode_envelope(one, b"", 5) for one in ids])
        await raw("ZADD", raw.keys.delayed, *[part for one in members for part in (due_ms, one)])
    for broken in (b"", b"\x05", b"\xff" * 12, b"\x05\x00\x00\x00greet"):
        await raw("ZADD", raw.keys.delayed, due_ms, broken)
    last = [f"{crowd - 1:032x}", f"{crowd - 2:032x}"]
    await raw("HSET", raw.keys.dix, last[0], due_ms, last[1], due_ms)
    before = {one: await calls_of(raw, one) for one in ("zrange", "zrangebyscore", "zscan")}

    found = [await queue.get_job(job_id) for job_id in last]

    assert [one.state for one in found] == ["delayed", "delayed"]
    assert {one.name for one in found} == {"greet", "a longer name"}
    after = {one: await calls_of(raw, one) for one in before}
    assert after["zrange"] - before["zrange"] < 300
    assert (after["zrangebyscore"], after["zscan"]) == (before["zrangebyscore"], before["zscan"])
    await raw("DEL", raw.keys.delayed)


async def calls_of(raw, command: str) -> int:
    stats = (await raw("INFO", "commandstats")).decode()
    return sum(int(one) for one in re.findall(rf"cmdstat_{command}:calls=(\d+)", stats))


async def test_a_job_that_waits_for_its_retry_is_delayed(queue, running_worker):
    async def handler(job):
        raise ValueError("not yet")

    await running_worker(handler)
    job = await queue.add("charge", 1, backoff=60_000)
    await eventually(lambda: is_state(queue, job.id, "delayed"))

    found = await queue.get_job(job.id)

    assert (found.name, found.attempt) == ("charge", 1)
    assert is_near_now(found.due_ms - 60_000)


async def test_a_delayed_job_of_the_other_implementation_is_found_without_an_index(queue, raw):
    member = encode_member("n", encode_envelope("foreign", b"\x01", 1, 4))
    await raw("ZADD", raw.keys.delayed, 4_000_000_000_000, member)

    found = await queue.get_job("foreign")

    assert (found.state, found.due_ms, found.attempt) == ("delayed", 4_000_000_000_000, 4)


async def test_a_delayed_job_that_is_never_due_has_no_due_time(queue, raw):
    member = encode_member("", encode_envelope("never", b"\x01", 1))
    await raw("ZADD", raw.keys.delayed, "+inf", member)

    found = await queue.get_job("never")

    assert (found.state, found.due_ms) == ("delayed", None)


async def test_an_index_that_was_left_behind_hides_nothing(queue, raw):
    job = await queue.add("greet", 1, job_id="mine")
    await raw("HSET", raw.keys.dix, job.id, 4_000_000_000_000)
    await raw("SET", raw.keys.didx(job.id), encode_member("", encode_envelope("mine", b"", 1)))

    assert (await queue.get_job(job.id)).state == "ready"


async def test_a_dead_job_tells_why(queue, running_worker):
    async def handler(job):
        raise UnrecoverableError("no such card")

    await running_worker(handler)
    job = await queue.add("charge", 1)
    (letter,) = await eventually(queue.peek_dlq)

    found = await queue.get_job(job.id)

    assert (found.state, found.reason, found.name) == ("dead", "unrecoverable", "charge")
    assert found.error == "UnrecoverableError: no such card"
    assert (found.attempt, found.entry_id) == (1, letter["dlq_id"])


async def test_a_replayed_job_is_dead_no_more(queue, running_worker):
    async def handler(job):
        raise UnrecoverableError("no such card")

    running = await running_worker(handler, store_results=True)
    job = await queue.add("charge", 1)
    await eventually(lambda: is_state(queue, job.id, "dead"))
    await running.stop()

    await queue.replay_dlq()

    found = await queue.get_job(job.id)
    assert (found.state, found.reason) == ("ready", None)


@pytest.mark.parametrize(
    ("handler_error", "state", "reason"),
    [(None, "completed", None), (UnrecoverableError("no"), "dead", "unrecoverable")],
    ids=["completed", "dead"],
)
async def test_a_job_that_ended_is_known_by_its_outcome(
    queue, running_worker, handler_error, state, reason
):
    async def handler(job):
        if handler_error is not None:
            raise handler_error

    await running_worker(handler, store_results=True)
    job = await queue.add("charge", 1)
    await eventually(lambda: is_state(queue, job.id, state))
    await queue.purge_dlq(all=True)

    found = await queue.get_job(job.id)

    assert (found.state, found.reason) == (state, reason)


async def test_an_outcome_of_a_newer_writer_is_read(queue, raw):
    outcome = {"status": "dead", "reason": "new", "error": "E: x", "more": [1]}
    await raw("SET", raw.keys.outcome("mine"), msgspec.msgpack.encode(outcome))

    found = await queue.get_job("mine")

    assert (found.state, found.reason, found.error) == ("dead", "new", "E: x")


@pytest.mark.parametrize(
    "outcome",
    [b"", b"\xc1", b"\x01", b"\x80", msgspec.msgpack.encode({"status": "melted"})],
    ids=repr,
)
async def test_an_outcome_that_makes_no_sense_hides_nothing(queue, raw, outcome):
    job = await queue.add("greet", 1)
    await raw("SET", raw.keys.outcome(job.id), outcome)

    assert (await queue.get_job(job.id)).state == "ready"


async def test_a_result_without_an_outcome_means_completed(queue, raw):
    await raw("SET", raw.keys.result("theirs"), b"\x01")

    assert (await queue.get_job("theirs")).state == "completed"


async def test_a_job_nobody_added_is_unknown(queue):
    await queue.add("greet", 1)

    found = await queue.get_job("nobody")

    assert (found.state, found.scanned_all, found.name) == ("unknown", True, None)


async def test_a_queue_without_any_key_knows_no_job(queue):
    assert (await queue.get_job("nobody")).state == "unknown"


@pytest.mark.parametrize("wanted", ["job", "ob-1", "job-", "job-11"])
async def test_a_part_of_an_id_is_not_the_job(queue, wanted):
    await queue.add("job", "job-11", job_id="job-1")
    await queue.add("job", "job-11", job_id="job-12", delay_ms=60_000)

    assert (await queue.get_job(wanted)).state == "unknown"


async def test_poison_in_every_place_hides_nothing(queue, raw):
    for key in (raw.keys.stream, raw.keys.dlq):
        await raw("XADD", key, "*", "x", "mine")
        await raw("XADD", key, "*", "d", b"\xc1mine")
        await raw("XADD", key, "*", "d", b"mine", "n", b"\xff")
    for member in (b"\x01", b"\xff\xff\xff\xffmine", b"\x00\x00\x00\x00mine"):
        await raw("ZADD", raw.keys.delayed, 1, member)
    member = encode_member("n", encode_envelope("mine", b"\x01", 1))
    await raw("ZADD", raw.keys.delayed, 2, member)

    assert (await queue.get_job("mine")).due_ms == 2


async def test_a_job_is_found_at_the_end_of_a_long_stream(queue):
    jobs = await queue.add_bulk([{"name": "a", "data": at} for at in range(5_000)])

    found = await queue.get_job(jobs[-1].id)

    assert (found.state, found.scanned_all) == ("ready", True)


async def test_a_search_that_gives_up_says_so(queue, find):
    jobs = await queue.add_bulk([{"name": "a", "data": at} for at in range(3_000)])

    found = await find(jobs[-1].id, 200)

    assert (found.state, found.scanned_all) == ("unknown", False)


async def test_a_long_stream_does_not_keep_a_search_from_the_dlq(queue, find, raw):
    await queue.add_bulk([{"name": "a", "data": at} for at in range(3_000)])
    await raw("XADD", raw.keys.dlq, "*", "d", encode_envelope("dead", b"\x01", 1), "reason", "x")

    found = await find("dead", 200)

    assert (found.state, found.reason) == ("dead", "x")


async def test_a_long_search_leaves_room_for_everyone_else(queue):
    await queue.add_bulk([{"name": "a", "data": "x" * 500} for _ in range(10_000)])
    search = asyncio.create_task(queue.get_job("nobody"))
    other_adds = 0

    while not search.done():
        await queue.add("other", 1)
        other_adds += 1

    # At least one for every page of a thousand.
    assert other_adds >= 10
    assert search.result().scanned_all


async def test_a_search_moves_nothing(queue, raw):
    await queue.add("greet", 1)
    before = await raw("DUMP", raw.keys.stream)

    await queue.get_job("nobody")

    assert await raw("DUMP", raw.keys.stream) == before


@pytest.mark.parametrize("bad", ["", "  ", None, 7, "x" * 257], ids=repr)
async def test_an_id_no_job_can_have_is_refused(queue, bad):
    with pytest.raises(SettingsError):
        await queue.get_job(bad)


async def test_a_closed_queue_finds_nothing(queue):
    await queue.close()

    with pytest.raises(StoreError, match="closed"):
        await queue.get_job("mine")


@pytest.mark.parametrize(
    ("lengths", "shares"),
    [
        ((0, 0, 0), (0, 0, 0)),
        ((10, 20, 30), (10, 20, 30)),
        ((1_000, 5, 0), (95, 5, 0)),
        ((5, 1_000, 1_000), (5, 47, 48)),
        ((1_000, 1_000, 1_000), (33, 33, 34)),
    ],
    ids=str,
)
def test_short_places_are_searched_whole_and_long_ones_share_the_rest(lengths, shares):
    assert fair_shares(lengths, 100) == shares


async def is_state(queue, job_id, state):
    return (await queue.get_job(job_id)).state == state


MIB = 1024 * 1024


@pytest.fixture
async def heavy(queue, raw):
    """A stream of 40 MiB whose jobs were added one after the other; answers them."""
    envelopes = [
        encode_envelope(f"old-{at}", b"\xc5\x10\x00" + b"x" * 4_096, 1) for at in range(10)
    ]
    for _ in range(1_000):
        await asyncio.gather(*[raw("XADD", raw.keys.stream, "*", "d", one) for one in envelopes])
    return [await queue.add("n", at) for at in range(10)]


@pytest.fixture
async def sent_bytes(url, queue_name):
    """How many bytes the server has sent to anybody but the one who asks."""
    asking = await Raw.open(url, queue_name)
    asked_bytes = 0

    async def count() -> int:
        nonlocal asked_bytes
        said = await asking("INFO", "stats")
        total = int(re.search(rb"total_net_output_bytes:(\d+)", said)[1]) - asked_bytes
        asked_bytes += len(said) + 32
        return total

    yield count
    await asking.close()


async def test_the_look_for_an_unknown_id_reads_no_more_than_it_may(heavy, queue, sent_bytes):
    for limit_bytes, reads_max in [(0, 2_000), (100_000, 300_000), (None, 50 * MIB)]:
        before = await sent_bytes()
        found = await queue.get_job("nobody", max_scanned_bytes=limit_bytes)
        read_bytes = await sent_bytes() - before

        print(f"at most {limit_bytes}: {read_bytes:,} bytes read")
        assert read_bytes <= reads_max
        assert (found.state, found.scanned_all) == ("unknown", limit_bytes is None)


async def test_a_look_without_a_limit_of_its_own_has_one_all_the_same(heavy, queue, sent_bytes):
    before = await sent_bytes()
    found = await queue.get_job("nobody")

    assert await sent_bytes() - before <= 10 * MIB
    assert (found.state, found.scanned_all) == ("unknown", False)


async def test_the_time_in_an_id_leads_to_the_job_behind_a_long_backlog(heavy, queue, sent_bytes):
    await asyncio.sleep(1.1)  # what is older than a second before the job comes last
    late = await queue.add("late", 1)

    before = await sent_bytes()
    found = await queue.get_job(late.id, max_scanned_bytes=100_000)

    assert found.state == "ready"
    assert await sent_bytes() - before <= 100_000


@pytest.mark.parametrize("options", [{}, {"job_id": "mine"}], ids=["fresh id", "own id"])
async def test_a_delayed_job_is_found_by_its_index_without_any_search(queue, options):
    job = await queue.add("n", 1, delay_ms=60_000, **options)

    found = await queue.get_job(job.id, max_scanned_bytes=0)

    assert (found.state, found.scanned_all) == ("delayed", True)


async def test_a_clock_that_was_ahead_hides_no_job(queue, raw):
    job_id = new_job_id(int(time.time() * 1000) + 86_400_000)
    await raw("XADD", raw.keys.stream, "*", "d", encode_envelope(job_id, b"\x01", 1))
    dead_id = new_job_id(int(time.time() * 1000) + 86_400_000)
    await raw("XADD", raw.keys.dlq, "*", "d", encode_envelope(dead_id, b"\x01", 1), "reason", "x")

    assert (await queue.get_job(job_id)).state == "ready"
    assert (await queue.get_job(dead_id)).state == "dead"
    nobody = await queue.get_job(new_job_id(int(time.time() * 1000)))
    assert (nobody.state, nobody.scanned_all) == ("unknown", True)


@pytest.mark.parametrize("bad", [-1, "1", 1.5, True], ids=repr)
async def test_a_limit_that_is_no_number_of_bytes_is_refused(queue, bad):
    with pytest.raises(SettingsError, match="max_scanned_bytes"):
        await queue.get_job("mine", max_scanned_bytes=bad)
