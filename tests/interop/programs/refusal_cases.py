"""What is refused, and by which built-in error a caller may catch it.

Each case is an expected error and a coroutine function of a queue and a producer.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

from chasquimq import Job, MissedFiresPolicy, Producer, Queue, RepeatPattern, Worker

NO_SERVER = "redis://127.0.0.1:1"
SECOND = timedelta(seconds=1)
EVERY = RepeatPattern.every(60_000)
PLAN = {"job_name": "n", "pattern": {"kind": "every", "interval_ms": 60_000}, "payload": b""}


def adding(name="n", data=0, **options):
    return lambda queue, _: queue.add(name, data, **options)


def repeating(pattern, **options):
    return lambda queue, _: queue.upsert_repeatable_job("n", 0, repeat=pattern, **options)


def natively(method: str, *arguments):
    return lambda _, producer: getattr(producer, method)(*arguments)


def waiting(**options):
    return lambda queue, _: Job("id", "n", 0, 0, 0, _queue=queue).wait_for_result(**options)


def working(**options):
    async def run(queue, producer):
        await Worker(queue.name, handler, redis_url=NO_SERVER, **options).run()

    return run


def calling(function, *arguments):
    async def call(queue, producer):
        function(*arguments)

    return call


async def handler(job) -> None: ...


async def add_nowhere(queue, producer):
    await Queue(queue.name, redis_url=NO_SERVER).add("n", 0)


async def add_nowhere_natively(queue, producer):
    await Producer(NO_SERVER, queue.name).add(b"")


CASES = {
    "both delays": (ValueError, adding(delay_ms=1, delay=SECOND)),
    "negative delay": (ValueError, adding(delay_ms=-1)),
    "negative timedelta": (ValueError, adding(delay=-SECOND)),
    "delay that is no number": (ValueError, adding(delay_ms=math.nan)),
    "endless delay": (ValueError, adding(delay_ms=math.inf)),
    "instant before 1970": (ValueError, adding(delay_ms=datetime(1969, 1, 1, tzinfo=UTC))),
    "blank id": (ValueError, adding(job_id=" ")),
    "empty id": (ValueError, adding(job_id="")),
    "id that is no text": (ValueError, adding(job_id=7)),
    "name that is no text": (ValueError, adding(name=7)),
    "negative attempts": (ValueError, adding(attempts=-1)),
    "too many attempts": (ValueError, adding(attempts=2**32)),
    "backoff of no kind": (ValueError, adding(backoff={"delay_ms": 1})),
    "backoff of a strange kind": (ValueError, adding(backoff={"kind": "x", "delay_ms": 1})),
    "backoff without a delay": (ValueError, adding(backoff={"kind": "fixed"})),
    "policy without repeat": (ValueError, adding(missed_fires=MissedFiresPolicy.skip())),
    "repeat of a strange kind": (ValueError, adding(repeat={"kind": "x"})),
    "no interval": (ValueError, repeating(RepeatPattern.every(0))),
    "blank unique id": (ValueError, lambda queue, _: queue.add_unique("n", 0, job_id=" ")),
    "no unique id": (ValueError, lambda queue, _: queue.add_unique("n", 0, job_id=None)),
    "no catch-up": (ValueError, calling(MissedFiresPolicy.fire_all, 0)),
    "no timeout": (ValueError, waiting(timeout=0)),
    "no poll": (ValueError, waiting(poll_interval=0)),
    "true as a delay": (TypeError, adding(delay_ms=True)),
    "text as a delay": (TypeError, adding(delay_ms="1")),
    "number as a timedelta": (TypeError, adding(delay=1)),
    "text as a backoff": (TypeError, adding(backoff="often")),
    "true as a backoff": (TypeError, adding(backoff=True)),
    "text as a repeat": (TypeError, adding(repeat="daily")),
    "data without a form": (TypeError, adding(data={1, 2})),
    "text as a catch-up": (TypeError, calling(MissedFiresPolicy.fire_all, "1")),
    "true as a catch-up": (TypeError, calling(MissedFiresPolicy.fire_all, True)),
    "long name": (RuntimeError, adding(name="n" * 257)),
    "long delay": (RuntimeError, adding(delay=timedelta(days=31))),
    "cron that is none": (RuntimeError, repeating(RepeatPattern.cron("x"))),
    "zone that is none": (RuntimeError, repeating(RepeatPattern.cron("* * * * *", tz="No/Where"))),
    "end before the first fire": (RuntimeError, repeating(EVERY, end_before_ms=5)),
    "queue without a server": (RuntimeError, add_nowhere),
    "worker without a server": (RuntimeError, working()),
    "negative block": (RuntimeError, working(read_block_ms=-1)),
    "negative lease": (RuntimeError, working(claim_min_idle_ms=-1)),
    "negative tick": (RuntimeError, working(scheduler_tick_ms=-1)),
    "negative DLQ length": (RuntimeError, working(dlq_max_stream_len=-1)),
    "results without a life": (RuntimeError, working(result_ttl_ms=0)),
    "job without a queue": (
        RuntimeError,
        lambda *_: Job("id", "n", 0, 0, 0).wait_for_result(timeout=1),
    ),
    "result that does not come": (TimeoutError, waiting(timeout=0.2)),
    "handle: text": (TypeError, natively("add", "x")),
    "handle: bytearray": (TypeError, natively("add", bytearray(1))),
    "handle: no options": (TypeError, natively("add_with_options", b"", None)),
    "handle: fraction of a delay": (TypeError, natively("add_in", 1.5, b"")),
    "handle: tuple of payloads": (TypeError, natively("add_bulk", (b"",))),
    "handle: tuple of names": (TypeError, natively("add_bulk_named", (("n", b""),))),
    "handle: list as a plan": (TypeError, natively("upsert_repeatable", [])),
    "handle: text in a bulk": (ValueError, natively("add_bulk", ["x"])),
    "handle: lists in a bulk": (ValueError, natively("add_bulk_named", [["n", b""]])),
    "handle: id that is no text": (ValueError, natively("add_with_options", b"", {"id": 7})),
    "handle: name that is no text": (ValueError, natively("add_with_options", b"", {"name": 7})),
    "handle: retry that is no dict": (ValueError, natively("add_with_options", b"", {"retry": 7})),
    "handle: negative delay": (ValueError, natively("add_in", -1, b"")),
    "handle: negative instant": (ValueError, natively("add_at", -1, b"")),
    "handle: plan without a name": (
        ValueError,
        natively("upsert_repeatable", {**PLAN, "job_name": None}),
    ),
    "handle: plan without a pattern": (
        ValueError,
        natively("upsert_repeatable", {**PLAN, "pattern": None}),
    ),
    "handle: policy that is no dict": (
        ValueError,
        natively("upsert_repeatable", {**PLAN, "missed_fires": "skip"}),
    ),
    "handle: one id for two": (
        RuntimeError,
        natively("add_bulk_with_options", [b"", b""], {"id": "x"}),
    ),
    "handle: long name": (RuntimeError, natively("add_with_options", b"", {"name": "n" * 257})),
    "handle: long delay": (RuntimeError, natively("add_in", 31 * 86_400_000, b"")),
    "handle: no server": (RuntimeError, add_nowhere_natively),
    "handle: no connections": (
        RuntimeError,
        lambda queue, _: Producer(NO_SERVER, queue.name, pool_size=0).add(b""),
    ),
}
