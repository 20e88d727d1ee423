"""What `chasqui watch` foretells comes true: of a queue that is drained, and of one that grows."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from contextlib import asynccontextmanager

import pytest

from chasquimq import Worker

RUN_S = 0.1
GROWTH_PER_S = 120
PACE_S = 0.1
pytestmark = pytest.mark.takes_turns


@pytest.fixture
def drained(queue_name, url):
    """A worker that takes ten jobs a second, one after the other."""

    async def handler(job) -> None:
        await asyncio.sleep(RUN_S)

    @asynccontextmanager
    async def run():
        worker = Worker(queue_name, handler, redis_url=url, concurrency=1, shutdown_deadline_ms=0)
        running = asyncio.create_task(worker.run())
        yield
        await worker.close()
        await running

    return run


@pytest.fixture
def growing(queue):
    """A producer that adds 120 jobs a second, however busy the machine is."""

    async def produce() -> None:
        loop = asyncio.get_running_loop()
        began_s, added = loop.time(), 0
        while True:
            due = int((loop.time() - began_s) * GROWTH_PER_S)
            await queue.add_bulk([{"name": "a", "data": 1}] * (due - added))
            added = due
            await asyncio.sleep(PACE_S)

    @asynccontextmanager
    async def run():
        producing = asyncio.create_task(produce())
        yield
        producing.cancel()
        await asyncio.wait([producing])

    return run


async def test_a_backlog_of_four_minutes_is_told_as_such(running, queue, queue_name, drained):
    await queue.add_bulk([{"name": "a", "data": 1}] * 1_900)
    async with drained():
        watching = running("watch", queue_name, "--interval-ms", "500")

        await watching.until_said("clears in about 4 min")

        assert await watching.ended(signal.SIGINT) == 130
    block = watching.out.split("\n\n")[-2]
    left_per_s = float(re.search(r"left per second +([\d.]+)", block)[1])
    assert 5 < left_per_s < 15
    assert re.search(r"added per second +0\.0 ", block)


async def test_a_backlog_is_gone_when_it_was_said_to_be(running, queue, queue_name, drained):
    await queue.add_bulk([{"name": "a", "data": 1}] * 80)
    async with drained():
        watching = running("watch", queue_name, "--interval-ms", "200", "--json")
        await watching.until_said("clears in about")
        await watching.until_said("nothing waits")

    looks = [json.loads(line) for line in watching.out.splitlines()]
    empty_ms = next(look["at_ms"] for look in looks if look["stream_depth"] == 0)
    # The first looks see a rate that has only begun.
    foretold = [look for look in looks if "clears" in (look["outlook"] or "")][5:]
    wrong_s = [
        empty_ms / 1000 - look["at_ms"] / 1000 - _seconds(look["outlook"]) for look in foretold
    ]
    assert foretold
    assert all(-2.5 < wrong < 2.5 for wrong in wrong_s), wrong_s


async def test_a_queue_that_grows_is_told_with_its_rate(running, queue, queue_name, growing):
    await queue.add("a", 1)
    async with growing():
        watching = running("watch", queue_name, "--interval-ms", "500")

        await watching.until_said("/s, will not clear", 4)

    told = [int(rate) for rate in re.findall(r"grows by (\d+)/s, will not clear", watching.out)]
    assert told
    assert 90 <= told[-1] <= 150


@pytest.mark.parametrize(
    ("who", "words"), [("drained", "clears in about"), ("growing", "/s, will not clear")]
)
async def test_a_terminal_shows_the_same_sentence(
    terminal, queue, queue_name, drained, growing, who, words
):
    await queue.add_bulk([{"name": "a", "data": 1}] * 500)
    async with {"drained": drained, "growing": growing}[who]():
        shown = await terminal("watch", queue_name, "--interval-ms", "200", until=words)

    assert shown.code == 130
    assert words in shown.out


def _seconds(sentence: str) -> int:
    number, unit = re.fullmatch(r"clears in about (\d+) (s|min)", sentence).groups()
    return int(number) * (60 if unit == "min" else 1)
