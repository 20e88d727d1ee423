"""A password goes to the server's AUTH and nowhere else, through a whole day of a queue."""

from __future__ import annotations

import asyncio
import logging
import traceback
from urllib.parse import urlsplit

import pytest

from chasquimq import Queue, QueueEvents, Worker
from chasquimq.blocking import Queue as BlockingQueue
from chasquimq.cli.app import main
from chasquimq.queue.inspector import Inspector
from chasquimq.settings import ConnectionSettings
from chasquimq.spark.sources.options import SourceOptions, parse_options
from chasquimq.worker.upkeep import Upkeep
from security.everyday import do_everything
from support.faultproxy import FaultProxy
from support.waiting import eventually

CANARY = "canary-e1f0"
ANSWERS = {
    b"stream": ("XRANGE", "-", "+"), b"zset": ("ZRANGE", 0, -1), b"hash": ("HGETALL",),
    b"string": ("GET",), b"list": ("LRANGE", 0, -1), b"set": ("SMEMBERS",),
}  # fmt: skip
# Usage that is wrong, with a URL in a place that is quoted back.
MISTAKES = [
    ("inspect", "q", "redis://me:canary-e1f0@127.0.0.1:1"),
    ("inspect", "redis://me:canary-e1f0@127.0.0.1:1"),
    ("dlq", "peek", "q", "--limit", "redis://me:canary-e1f0@127.0.0.1:1"),
    ("nonsense", "redis://me:canary-e1f0@127.0.0.1:1"),
    ("inspect", "q", "--redis-url", "redis://me:canary-e1f0@127.0.0.1:1"),
    ("inspect", "q", "--redis-url", "redis://me:canary-e1f0@127.0.0.1:port"),
    ("doctor", "q", "--redis-url", "redis://me:canary-e1f0@127.0.0.1:1"),
    ("worker", "q", "no_such_module:handler", "--redis-url", "redis://me:canary-e1f0@127.0.0.1:1"),
    ("pipeline", "status", "--redis-url", "redis://me:canary-e1f0@127.0.0.1:1"),
]


@pytest.fixture
async def guarded(raw, queue_name, url):
    """The URL of a user whose password is the canary."""
    await raw("ACL", "SETUSER", queue_name, "reset", "on", f">{CANARY}", "~*", "+@all")
    parts = urlsplit(url)
    yield parts._replace(netloc=f"{queue_name}:{CANARY}@{parts.netloc}").geturl()
    await raw("ACL", "DELUSER", queue_name)


@pytest.fixture
def everything_said(caplog, capfd):
    """All that was logged, with every field, and all that was printed."""
    caplog.set_level(logging.DEBUG)

    def said() -> str:
        printed = capfd.readouterr()
        records = repr([vars(record) for record in caplog.records])
        return caplog.text + records + printed.out + printed.err

    return said


async def test_a_whole_day_leaves_it_nowhere(guarded, raw, queue_name, everything_said):
    await do_everything(guarded, queue_name)

    stored = await _everything_stored(raw)
    assert len(stored) > 1_000
    assert CANARY not in everything_said() + stored


async def test_an_outage_under_a_worker_is_told_without_it(
    raw, url, queue_name, everything_said, caplog, guarded
):
    async with FaultProxy(url) as proxy:
        limited = proxy.url.replace("redis://", f"redis://{queue_name}:{CANARY}@")
        worker = Worker(queue_name, print, redis_url=limited, events="full")
        running = asyncio.create_task(worker.run())
        async with Queue(queue_name, redis_url=limited, command_timeout_ms=300) as queue:
            await queue.add("n", 1)
            await eventually(lambda: worker.health().is_consuming, what="a worker that consumes")
            proxy.refuse()
            proxy.cut()
            await eventually(lambda: "dialling again" in caplog.text, what="a word of the outage")
            await raw("ACL", "SETUSER", queue_name, "resetpass", ">another")
            await proxy.accept()
            adding = asyncio.ensure_future(queue.add("n", 2))
            await asyncio.wait([adding], timeout=2)
            adding.cancel()
            ended = await asyncio.gather(adding, return_exceptions=True)
        worker.request_stop()
        worker.request_stop()
        ended += await asyncio.gather(running, return_exceptions=True)
    said = everything_said()
    errors = "".join("".join(traceback.format_exception(e)) for e in ended if e is not None)

    assert CANARY not in said + errors + repr(ended) + repr(worker.health())


@pytest.mark.parametrize("words", MISTAKES, ids=lambda words: " ".join(words[:2])[:30])
def test_a_mistake_is_told_without_it(words, everything_said):
    assert main(list(words)) != 0

    said = everything_said()
    assert said.strip()
    assert CANARY not in said


def test_no_repr_shows_it():
    url = f"redis://me:{CANARY}@127.0.0.1:1"
    things = [
        ConnectionSettings(url=url),
        Queue("q", redis_url=url),
        BlockingQueue("q", redis_url=url),
        Worker("q", print, redis_url=url),
        QueueEvents("q", redis_url=url),
        Upkeep("q", redis_url=url),
        Inspector(redis_url=url),
        parse_options({"chasqui.redis.url": url, "subscribe": "q"}),
    ]

    shown = repr(things) + str(things) + "".join(repr(vars(one)) for one in things if _is_open(one))

    assert CANARY not in shown


def _is_open(thing: object) -> bool:
    """Whether a debugger shows its attributes in one line; settings keep their URL as a field."""
    return hasattr(thing, "__dict__") and not isinstance(thing, SourceOptions)


async def _everything_stored(raw) -> str:
    """Whatever the server holds, as text."""
    found = []
    for key in await raw("KEYS", "*"):
        kind = await raw("TYPE", key)
        if kind == b"none":
            continue  # it expired meanwhile
        command, *rest = ANSWERS[kind]
        found.append((key, await raw(command, key, *rest)))
    return repr(found)
