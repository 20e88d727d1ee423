"""Producer, Consumer and Scheduler: payloads are bytes, from the caller to the handler and back."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import asynccontextmanager

import pytest

from chasquimq import Consumer, Producer, Scheduler, UnrecoverableError, Worker, _native
from chasquimq.errors import LimitExceeded, ServerUnreachable, SettingsError, StoreError
from chasquimq.wire.envelope import decode_envelope
from chasquimq.wire.stream_entry import split_member
from support.waiting import eventually

NO_SERVER = "redis://127.0.0.1:1"
PLAN = {"job_name": "tick", "pattern": {"kind": "every", "interval_ms": 60_000}, "payload": b"\x01"}


@pytest.fixture
async def producer(url, queue_name):
    producer = Producer(url, queue_name)
    yield producer
    await producer.shutdown()


@pytest.fixture
async def consuming(url, queue_name):
    """Run consumers of the test's queue; all are shut down when the test ends."""
    started: list[tuple[Consumer, asyncio.Task]] = []

    def start(handler, **options) -> Consumer:
        consumer = Consumer(url, queue_name, **options)
        started.append((consumer, asyncio.create_task(consumer.run(handler))))
        return consumer

    yield start
    for consumer, task in started:
        consumer.shutdown()
        await task


@asynccontextmanager
async def running(scheduler: Scheduler):
    task = asyncio.create_task(scheduler.run())
    try:
        yield scheduler
    finally:
        scheduler.shutdown()
        await task


async def envelopes(raw) -> list:
    return [decode_envelope(fields[b"d"]) for _, fields in await raw.entries(raw.keys.stream)]


async def names(raw) -> list:
    return [fields.get(b"n") for _, fields in await raw.entries(raw.keys.stream)]


# ── Producer ─────────────────────────────────────────────────────────────────────────────────


async def test_a_payload_enters_the_envelope_as_it_is(producer, raw):
    job_id = await producer.add(b"\xc1 not MessagePack")

    (envelope,) = await envelopes(raw)
    assert (envelope.id, envelope.payload) == (job_id, b"\xc1 not MessagePack")
    assert await names(raw) == [None]


async def test_options_name_the_job_and_its_retries(producer, raw):
    backoff = {"kind": "exponential", "delay_ms": 5, "multiplier": 3, "colour": "red"}
    retry = {"max_attempts": 4, "backoff": backoff, "colour": "red"}

    job_id = await producer.add_with_options(
        b"x", {"id": "my-id", "name": "mail", "retry": retry, "colour": "red"}
    )

    (envelope,) = await envelopes(raw)
    assert job_id == envelope.id == "my-id"
    assert await names(raw) == [b"mail"]
    assert envelope.retry.max_attempts == 4
    assert (envelope.retry.backoff.kind, envelope.retry.backoff.multiplier) == ("exponential", 3.0)


async def test_options_that_are_none_ask_for_nothing(producer, raw):
    await producer.add_with_options(b"x", {"id": None, "name": None, "retry": None})

    (envelope,) = await envelopes(raw)
    assert (len(envelope.id), envelope.retry) == (26, None)


async def test_an_id_is_added_once(producer, raw):
    first = await producer.add_with_options(b"x", {"id": "once"})
    again = await producer.add_with_options(b"x", {"id": "once"})

    assert first == again == "once"
    assert len(await envelopes(raw)) == 1


async def test_a_delayed_payload_waits_for_its_time(producer, raw):
    before_ms = int(time.time() * 1000)

    job_id = await producer.add_in_with_options(60_000, b"later", {"name": "mail"})

    member, score = await raw("ZRANGE", raw.keys.delayed, 0, -1, "WITHSCORES")
    name, envelope = split_member(member)
    assert (name, decode_envelope(envelope).payload) == ("mail", b"later")
    assert decode_envelope(envelope).id == job_id
    assert 59_000 < float(score) - before_ms < 120_000


async def test_an_instant_is_kept_to_the_millisecond(producer, raw):
    when_ms = int(time.time() * 1000) + 60_000

    for extra_ms in range(10):
        await producer.add_at(when_ms + extra_ms, b"x")

    flat = await raw("ZRANGE", raw.keys.delayed, 0, -1, "WITHSCORES")
    assert [int(score) for score in flat[1::2]] == [when_ms + extra for extra in range(10)]


async def test_an_instant_that_has_passed_means_now(producer, raw):
    await producer.add_at_with_options(5, b"x", {"name": "late"})

    assert await names(raw) == [b"late"]


async def test_no_delay_means_now(producer, raw):
    await producer.add_in(0, b"x")

    assert len(await envelopes(raw)) == 1


async def test_bulks_keep_their_order(producer, raw):
    ids = await producer.add_bulk([b"a", b"b"])
    ids += await producer.add_bulk_named([("n", b"c"), ("", b"d")])
    ids += await producer.add_bulk_with_options([b"e", b"f"], {"name": "m"})

    assert [envelope.id for envelope in await envelopes(raw)] == ids
    assert [envelope.payload for envelope in await envelopes(raw)] == [b"a", b"b", b"c", b"d", b"e", b"f"]  # fmt: skip
    assert await names(raw) == [None, None, b"n", None, b"m", b"m"]


async def test_a_delayed_bulk_falls_due_together(producer, raw):
    ids = await producer.add_in_bulk(60_000, [b"a", b"b"])

    flat = await raw("ZRANGE", raw.keys.delayed, 0, -1, "WITHSCORES")
    assert {decode_envelope(split_member(member)[1]).id for member in flat[::2]} == set(ids)
    assert len(set(flat[1::2])) == 1


async def test_an_empty_bulk_adds_nothing(producer):
    assert await producer.add_bulk([]) == []
    assert await producer.add_bulk_with_options([], {"id": "nobody"}) == []


async def test_an_id_is_for_one_payload_of_a_bulk(producer, raw):
    assert await producer.add_bulk_with_options([b"a"], {"id": "alone"}) == ["alone"]

    with pytest.raises(RuntimeError, match=r"opts\.id"):
        await producer.add_bulk_with_options([b"a", b"b"], {"id": "shared"})

    assert len(await envelopes(raw)) == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda p: p.add_bulk((b"a",)),
        lambda p: p.add_bulk(b"ab"),
        lambda p: p.add_bulk_named((("a", b"b"),)),
        lambda p: p.add_bulk_with_options(iter([b"a"]), {}),
        lambda p: p.add_in_bulk(1, (b"a",)),
        lambda p: p.add("text"),
        lambda p: p.add(bytearray(b"x")),
        lambda p: p.add_with_options(b"x", None),
        lambda p: p.add_in(1.5, b"x"),
        lambda p: p.upsert_repeatable([]),
    ],
)
async def test_a_wrong_type_is_a_type_error(producer, call):
    with pytest.raises(TypeError):
        await call(producer)


@pytest.mark.parametrize(
    "call",
    [
        lambda p: p.add_bulk(["text"]),
        lambda p: p.add_bulk_named([["name", b"x"]]),
        lambda p: p.add_bulk_named([("name", b"x", 1)]),
        lambda p: p.add_with_options(b"x", {"id": 5}),
        lambda p: p.add_with_options(b"x", {"name": 5}),
        lambda p: p.add_with_options(b"x", {"retry": "often"}),
        lambda p: p.add_with_options(b"x", {"retry": {"max_attempts": -1}}),
        lambda p: p.add_with_options(b"x", {"retry": {"backoff": {"kind": "none"}}}),
        lambda p: p.add_with_options(b"x", {"retry": {"backoff": {"kind": "fixed"}}}),
        lambda p: p.add_in(-1, b"x"),
        lambda p: p.add_at(-1, b"x"),
        lambda p: p.upsert_repeatable({"pattern": PLAN["pattern"], "payload": b""}),
        lambda p: p.upsert_repeatable({**PLAN, "pattern": {"kind": "never"}}),
        lambda p: p.upsert_repeatable({**PLAN, "pattern": {"kind": "every", "interval_ms": 0}}),
        lambda p: p.upsert_repeatable({**PLAN, "missed_fires": "skip"}),
        lambda p: p.upsert_repeatable({**PLAN, "missed_fires": {"kind": "fire-all"}}),
        lambda p: p.upsert_repeatable({**PLAN, "limit": -1}),
    ],
)
async def test_a_wrong_value_is_a_value_error(producer, raw, call):
    with pytest.raises(ValueError, match="must be"):
        await call(producer)

    assert await raw("EXISTS", raw.keys.stream, raw.keys.delayed, raw.keys.repeat) <= 1


@pytest.mark.parametrize(
    "call",
    [
        lambda p: p.add_with_options(b"x", {"name": "n" * 257}),
        lambda p: p.add_in(31 * 86_400_000, b"x"),
        lambda p: p.add_at(10**16, b"x"),
        lambda p: p.upsert_repeatable({**PLAN, "pattern": {"kind": "cron", "expression": "x"}}),
        lambda p: p.upsert_repeatable({**PLAN, "end_before_ms": 5}),
    ],
)
async def test_what_the_original_refuses_in_its_engine_is_a_runtime_error(producer, call):
    with pytest.raises(RuntimeError):
        await call(producer)


async def test_what_is_delayed_can_be_cancelled(producer):
    for job_id in ("a", "b"):
        await producer.add_in_with_options(60_000, b"x", {"id": job_id})

    assert await producer.cancel_delayed("a") is True
    assert await producer.cancel_delayed("a") is False
    assert await producer.cancel_delayed_bulk(["b", "unknown"]) == [True, False]


async def test_plans_are_listed_with_every_key_and_removed(producer):
    key = await producer.upsert_repeatable(
        {**PLAN, "pattern": {"kind": "cron", "expression": "0 0 1 1 *", "colour": "red"}}
    )
    await producer.upsert_repeatable(
        {
            **PLAN, "key": "mine", "limit": 3, "start_after_ms": 1, "end_before_ms": 2**42,
            "missed_fires": {"kind": "fire-all", "max_catchup": 2}, "colour": "red",
        }
    )  # fmt: skip

    soon, late = await producer.list_repeatable(10)

    assert key == "tick::cron:0 0 1 1 *:UTC"
    soon_ms, late_ms = soon.pop("next_fire_ms"), late.pop("next_fire_ms")
    assert soon_ms < late_ms
    assert soon == {
        "key": "mine", "job_name": "tick", "pattern": {"kind": "every", "interval_ms": 60_000},
        "limit": 3, "start_after_ms": 1, "end_before_ms": 2**42,
        "missed_fires": {"kind": "fire-all", "max_catchup": 2},
    }  # fmt: skip
    assert late == {
        "key": key, "job_name": "tick",
        "pattern": {"kind": "cron", "expression": "0 0 1 1 *", "tz": None},
        "limit": None, "start_after_ms": None, "end_before_ms": None, "missed_fires": None,
    }  # fmt: skip
    assert await producer.remove_repeatable_by_key("mine") is True
    assert await producer.remove_repeatable_by_key("mine") is False


async def test_a_producer_tells_its_keys_and_its_id(producer, queue_name):
    assert producer.stream_key() == f"{{chasqui:{queue_name}}}:stream"
    assert producer.delayed_key() == f"{{chasqui:{queue_name}}}:delayed"
    assert producer.dlq_key() == f"{{chasqui:{queue_name}}}:dlq"
    assert len(producer.producer_id()) == 36


async def test_a_call_after_shutdown_is_refused_at_once(producer):
    await producer.add(b"x")
    producer_id = producer.producer_id()

    await producer.shutdown()
    await producer.shutdown()

    with pytest.raises(StoreError, match="closed"):
        async with asyncio.timeout(1):
            await producer.add(b"x")
    assert producer.producer_id() == producer_id


async def test_a_producer_without_a_server_says_so_at_its_first_add(queue_name):
    with pytest.raises(ServerUnreachable):
        await Producer(NO_SERVER, queue_name).add(b"x")


def test_a_pool_of_no_connections_is_refused(queue_name):
    with pytest.raises(RuntimeError, match="pool_size"):
        Producer(NO_SERVER, queue_name, pool_size=0)


# ── Consumer ─────────────────────────────────────────────────────────────────────────────────


async def test_a_handler_gets_bytes_and_nothing_is_decoded(producer, consuming):
    seen = asyncio.Queue()

    async def handler(job):
        seen.put_nowait((job.id, job.name, job.payload, job.attempt, job.created_at_ms))

    before_ms = int(time.time() * 1000)
    job_id = await producer.add_with_options(b"\xc1raw", {"name": "mail"})
    consuming(handler)

    async with asyncio.timeout(10):
        *told, created_at_ms = await seen.get()
    assert told == [job_id, "mail", b"\xc1raw", 0]
    assert before_ms <= created_at_ms <= before_ms + 10_000


@pytest.mark.parametrize(
    ("returned", "kept"),
    [(b"\xc1raw", b"\xc1raw"), (b"", None), (None, None), ("text", None), (bytearray(b"x"), None)],
)
async def test_only_bytes_are_kept_as_a_result(producer, consuming, raw, returned, kept):
    async def handler(job):
        return returned

    consuming(handler, store_results=True)
    job_id = await producer.add(b"x")

    await eventually(lambda: raw("EXISTS", raw.keys.outcome(job_id)), what="the outcome")
    assert await producer.get_result(job_id) == kept
    assert await producer.get_result_bulk([job_id, "unknown"]) == [kept, None]


async def test_nothing_is_kept_unless_asked_for(producer, consuming, raw):
    async def handler(job):
        return b"value"

    consuming(handler)
    job_id = await producer.add(b"x")

    await eventually(lambda: is_empty(raw), what="an empty stream")
    assert await producer.get_result(job_id) is None


async def test_failures_are_retried_and_then_buried(producer, consuming):
    attempts = []

    async def handler(job):
        attempts.append(job.attempt)
        raise ValueError("broken")

    retry = {"max_attempts": 2, "backoff": {"kind": "fixed", "delay_ms": 1}}
    await producer.add_with_options(b"x", {"name": "mail", "retry": retry})
    consuming(handler)

    (letter,) = await eventually(lambda: producer.peek_dlq(10), what="a dead letter")
    assert attempts == [0, 1]
    assert (letter["reason"], letter["name"]) == ("retries_exhausted", "mail")
    assert decode_envelope(letter["payload"]).payload == b"x"


async def test_what_was_buried_can_be_replayed(producer, consuming):
    attempts = []

    async def handler(job):
        attempts.append(job.attempt)
        if len(attempts) == 1:
            raise UnrecoverableError("never")

    consuming(handler)
    await producer.add(b"x")
    await eventually(lambda: producer.peek_dlq(10), what="a dead letter")

    assert await producer.replay_dlq(10) == 1
    await eventually(lambda: attempts == [0, 0], what="the second run")


async def test_one_job_at_a_time_unless_asked_for_more(producer, consuming):
    together, at_once = 0, []

    async def handler(job):
        nonlocal together
        together += 1
        at_once.append(together)
        await asyncio.sleep(0.01)
        together -= 1

    await producer.add_bulk([b"x"] * 5)
    consuming(handler)

    await eventually(lambda: len(at_once) == 5, what="five runs")
    assert set(at_once) == {1}


async def test_a_consumer_that_was_shut_down_does_not_run_again(url, queue_name):
    consumer = Consumer(url, queue_name)
    consumer.shutdown()
    consumer.shutdown()

    async with asyncio.timeout(1):
        await consumer.run(noop)


async def test_shutting_down_twice_does_not_cut_a_handler_short(producer, url, queue_name):
    started, ended = asyncio.Event(), []

    async def handler(job):
        started.set()
        await asyncio.sleep(0.2)
        ended.append(job.id)

    job_id = await producer.add(b"x")
    consumer = Consumer(url, queue_name)
    running = asyncio.create_task(consumer.run(handler))
    await started.wait()

    consumer.shutdown()
    consumer.shutdown()
    await running

    assert ended == [job_id]


async def test_what_cannot_be_called_is_no_handler(url, queue_name):
    with pytest.raises(TypeError, match="handler"):
        await Consumer(url, queue_name).run(5)


async def test_a_consumer_without_a_server_says_so(queue_name):
    with pytest.raises(ServerUnreachable):
        await Consumer(NO_SERVER, queue_name).run(noop)


# ── Scheduler ────────────────────────────────────────────────────────────────────────────────


async def test_a_scheduler_alone_fires_plans(url, queue_name, producer, raw):
    plan = {**PLAN, "pattern": {"kind": "every", "interval_ms": 50}, "limit": 2}
    await producer.upsert_repeatable(plan)

    async with running(Scheduler(url, queue_name, tick_interval_ms=20, batch=1)):
        await eventually(lambda: has_fired(raw, 2), what="two fires")

    assert [envelope.payload for envelope in await envelopes(raw)] == [b"\x01"] * 2
    assert await names(raw) == [b"tick", b"tick"]


async def test_a_scheduler_leads_under_its_name_and_lets_go(url, queue_name, raw):
    async def holder():
        return await raw("GET", raw.keys.scheduler_lock)

    async with running(Scheduler(url, queue_name, holder_id="me", lock_ttl_secs=30)):
        await eventually(holder, what="a leader")
        assert await holder() == b"me"
        assert 25 <= await raw("TTL", raw.keys.scheduler_lock) <= 30

    assert await holder() is None


async def test_a_scheduler_that_was_shut_down_does_not_run_again(url, queue_name):
    scheduler = Scheduler(url, queue_name)
    async with running(scheduler):
        pass

    async with asyncio.timeout(1):
        await scheduler.run()


async def test_a_scheduler_without_a_server_says_so(queue_name):
    with pytest.raises(ServerUnreachable):
        await Scheduler(NO_SERVER, queue_name).run()


@pytest.mark.parametrize(
    "options",
    [{"tick_interval_ms": -1}, {"batch": 0}, {"lock_ttl_secs": 0}, {"max_stream_len": -1}],
)
def test_a_schedulers_number_out_of_range_is_refused_by_its_name(queue_name, options):
    with pytest.raises(LimitExceeded, match=next(iter(options))):
        Scheduler(NO_SERVER, queue_name, **options)


# ── around them ──────────────────────────────────────────────────────────────────────────────


async def test_a_long_dlq_is_reported_once_and_never_trimmed(url, queue_name, raw, caplog):
    for _ in range(3):
        await raw(
            "XADD", raw.keys.dlq, "*", "d", "x", "source_id", "1-1", "reason", "unrecoverable"
        )
    worker = Worker(queue_name, noop, redis_url=url, dlq_max_stream_len=2)

    with caplog.at_level(logging.WARNING, logger="chasquimq.engine.upkeep"):
        running = asyncio.create_task(worker.run())
        await eventually(lambda: caplog.records, what="a warning")
        await worker.close()
        await running

    assert [(r.chasqui_dead, r.chasqui_dlq_max_stream_len) for r in caplog.records] == [(3, 2)]
    assert await raw("XLEN", raw.keys.dlq) == 3


def test_a_consumer_takes_no_concurrency_for_one_as_the_original_does(url, queue_name):
    Consumer(url, queue_name, concurrency=0).shutdown()

    with pytest.raises(SettingsError, match="concurrency must be at least 1"):
        Consumer(url, queue_name, concurrency=-1)


def test_a_dlq_threshold_below_zero_is_refused(queue_name):
    with pytest.raises(SettingsError, match="dlq_max_stream_len"):
        Worker(queue_name, noop, dlq_max_stream_len=-1)


@pytest.fixture
def untraced(monkeypatch):
    """A process that has not switched its log lines on; it is put back as it was."""
    root = logging.getLogger("chasquimq")
    level, handlers = root.level, list(root.handlers)
    monkeypatch.setattr(_native, "_tracing", [])
    monkeypatch.delenv("RUST_LOG", raising=False)
    monkeypatch.delenv("CHASQUIMQ_LOG", raising=False)
    yield monkeypatch
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.getLogger("chasquimq.store").setLevel(logging.NOTSET)


def test_log_lines_are_switched_on_once(untraced, capsys):
    assert [_native._init_tracing(), _native._init_tracing()] == [True, False]

    logging.getLogger("chasquimq.engine").warning("heard")
    logging.getLogger("chasquimq.engine").info("unheard")

    assert capsys.readouterr().err.count("heard") == 1


@pytest.mark.parametrize(
    ("wanted", "is_heard"),
    [
        ("debug", True),
        ("TRACE", True),
        ("chasquimq::store=debug", True),
        ("warn,chasquimq::store=debug", True),
        ("debug,chasquimq::store=error", False),
        ("other=debug", False),
        ("nonsense", False),
        ("off", False),
    ],
)
def test_a_filter_chooses_the_log_lines(untraced, capsys, wanted, is_heard):
    untraced.setenv("CHASQUIMQ_LOG", wanted)
    _native._init_tracing()

    logging.getLogger("chasquimq.store.net.reconnect").debug("dialling")

    assert ("dialling" in capsys.readouterr().err) is is_heard


def test_the_first_variable_wins(untraced, capsys):
    untraced.setenv("RUST_LOG", "error")
    untraced.setenv("CHASQUIMQ_LOG", "debug")
    _native._init_tracing()

    logging.getLogger("chasquimq.store.net.reconnect").warning("dialling")

    assert capsys.readouterr().err == ""


async def noop(job):
    return


async def is_empty(raw) -> bool:
    return await raw("XLEN", raw.keys.stream) == 0


async def has_fired(raw, count: int) -> bool:
    return await raw("XLEN", raw.keys.stream) == count
