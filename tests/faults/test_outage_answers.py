"""The server goes away: every call answers within the time it was given, and its outcome is true."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time

import pytest

from chasquimq import Queue
from chasquimq.blocking import Queue as BlockingQueue
from chasquimq.errors import ConnectionLost, StoreError
from chasquimq.queue.inspector import Inspector
from support.faultproxy import FaultProxy
from support.raw import Raw
from support.waiting import eventually, patience

ADDS = 50
IS_BIG = os.environ.get("CHASQUI_TEST_BIG") == "1"
# How long an outage lasts, and how often one connection may dial in it.
OUTAGE_S, DIALS_MAX = (60.0, 15) if IS_BIG else (12.0, 8)
# What a loop under load may add, for each other program on a core.
MARGIN_S = 0.1
COMMAND_MS = 300
ANSWER_S = 0.5
pytestmark = pytest.mark.own_server(aof="always")
takes_turns = pytest.mark.takes_turns


async def ended(call) -> tuple[float, object]:
    """How long a call took, and its answer or its error."""
    began_s = time.monotonic()
    try:
        answer = await call
    except StoreError as error:
        answer = error
    return time.monotonic() - began_s, answer


async def all_ended(calls) -> tuple[list[float], list[object]]:
    took_s, answers = zip(*await asyncio.gather(*map(ended, calls)), strict=True)
    return list(took_s), list(answers)


class Trouble:
    """A server behind a proxy that goes away in one of three ways, and comes back."""

    def __init__(self, server, proxy: FaultProxy, way: str) -> None:
        self._server, self._proxy, self._way = server, proxy, way

    def begin(self) -> None:
        if self._way == "killed":
            self._server.kill()
        elif self._way == "stopped":
            os.kill(self._server.pid, signal.SIGSTOP)
        else:
            self._proxy.freeze()
            self._proxy.blackhole()

    async def end(self) -> None:
        if self._way == "killed":
            await asyncio.to_thread(self._server.start)
        elif self._way == "stopped":
            os.kill(self._server.pid, signal.SIGCONT)
        else:
            self._proxy.calm()
            self._proxy.cut()


WAYS = ["killed", "stopped", "blackholed"]


@pytest.fixture
async def away(server, request):
    """The way a server goes, which a test names."""
    async with FaultProxy(server.url) as proxy:
        trouble = Trouble(server, proxy, request.param)
        trouble.url = proxy.url if request.param == "blackholed" else server.url
        yield trouble
        if request.param == "stopped":
            await trouble.end()


async def left_in_queue(raw: Raw) -> set[bytes]:
    entries = await raw("XRANGE", raw.keys.stream, "-", "+")
    return {fields[fields.index(b"d") + 1] for _, fields in entries}


async def demand_the_truth(server, queue_name, answers) -> None:
    """Nothing that was acknowledged is lost; nothing that was said not to be done is there."""
    raw = await Raw.open(server.url, queue_name)
    there = b"".join(await left_in_queue(raw))
    await raw.close()
    added = [one.id for one in answers if not isinstance(one, StoreError)]
    never = [one.job_ids[0] for one in answers if getattr(one, "outcome", "") == "not_done"]
    assert [one for one in added if one.encode() not in there] == []
    assert [one for one in never if one.encode() in there] == []


@pytest.mark.timeout(90)
@pytest.mark.parametrize("away", WAYS, indirect=True)
@pytest.mark.parametrize(("options", "limit_s"), [({}, 5.5), ({"add_timeout_ms": 500}, 0.6)])
async def test_fifty_adds_answer_within_their_time(away, server, queue_name, options, limit_s):
    async with Queue(queue_name, redis_url=away.url, **options) as queue:
        before = [await queue.add("n", at) for at in range(10)]
        away.begin()
        took_s, answers = await all_ended(queue.add("n", at) for at in range(ADDS))
        print(f"{max(took_s):.3f} s")
        assert {type(one) for one in answers} <= {ConnectionLost}
        assert {len(one.job_ids) for one in answers} == {1}
        assert max(took_s) <= limit_s + MARGIN_S * (patience() - 1)
        await away.end()
        if away._way != "killed":
            # What was written before the server woke is there by now, or never.
            await queue.add("last", 0, add_timeout_ms=30_000)
    await demand_the_truth(server, queue_name, [*before, *answers])


QUESTIONS = {
    "counts": lambda queue, _: queue.counts(),
    "get_job": lambda queue, _: queue.get_job("nobody"),
    "cancel_delayed": lambda queue, _: queue.cancel_delayed("nobody"),
    "peek_dlq": lambda queue, _: queue.peek_dlq(),
    "purge_dlq": lambda queue, _: queue.purge_dlq(all=True),
    "replay_dlq": lambda queue, _: queue.replay_dlq(),
    "get_repeatable_jobs": lambda queue, _: queue.get_repeatable_jobs(),
    "remove_repeatable": lambda queue, _: queue.remove_repeatable_by_key("nobody"),
    "get_job_result": lambda queue, _: queue.get_job_result("nobody"),
    "snapshot": lambda queue, inspector: inspector.snapshot(queue.name),
    "survey_all": lambda _, inspector: inspector.survey_all(),
    "workers": lambda queue, inspector: inspector.workers(queue.name),
    "groups": lambda queue, inspector: inspector.groups(queue.name),
    "remove_group": lambda queue, inspector: inspector.remove_group(queue.name, "nobody"),
    "diagnose_server": lambda _, inspector: inspector.diagnose_server(),
    "diagnose_queue": lambda queue, inspector: inspector.diagnose_queue(queue.name),
}


@takes_turns
@pytest.mark.timeout(90)
@pytest.mark.parametrize("has_asked", [True, False], ids=["open before", "first dial"])
@pytest.mark.parametrize("away", WAYS, indirect=True)
async def test_every_question_answers_within_the_command_timeout(away, queue_name, has_asked):
    options = {"redis_url": away.url, "command_timeout_ms": COMMAND_MS}
    async with Queue(queue_name, **options) as queue, Inspector(**options) as inspector:
        if has_asked:
            await asyncio.gather(*(ask(queue, inspector) for ask in QUESTIONS.values()))
        away.begin()
        late = {}
        for name, ask in QUESTIONS.items():
            took_s, answer = await ended(ask(queue, inspector))
            assert isinstance(answer, StoreError), name
            if took_s > ANSWER_S * patience():
                late[name] = took_s
    assert late == {}


@takes_turns
@pytest.mark.timeout(60)
@pytest.mark.parametrize("away", WAYS, indirect=True)
async def test_the_blocking_queue_answers_within_the_same_times(away, queue_name):
    queue = BlockingQueue(queue_name, redis_url=away.url, command_timeout_ms=COMMAND_MS)

    def ask() -> list[float]:
        times = []
        for call in (queue.counts, lambda: queue.add("n", 1, add_timeout_ms=COMMAND_MS)):
            began_s = time.monotonic()
            with pytest.raises(StoreError):
                call()
            times.append(time.monotonic() - began_s)
        return times

    await asyncio.to_thread(queue.add, "n", 0)
    away.begin()
    try:
        assert max(await asyncio.to_thread(ask)) <= ANSWER_S * patience()
    finally:
        await asyncio.to_thread(queue.close)


@takes_turns
@pytest.mark.timeout(60)
async def test_the_first_add_after_an_outage_works_at_once(server, queue_name):
    async with Queue(queue_name, redis_url=server.url) as queue:
        await queue.add("warm", 0)
        server.kill()
        took_s, error = await ended(queue.add("n", 1))
        assert (type(error), took_s > 4.9) == (ConnectionLost, True)
        await asyncio.to_thread(server.start)

        took_s, job = await ended(queue.add("n", 2))

        print(f"{took_s:.3f} s")
        assert not isinstance(job, StoreError)
        assert took_s < 0.5 * patience()


@takes_turns
@pytest.mark.timeout(180)
async def test_adds_that_come_all_the_time_make_no_dial_storm(url, queue_name):
    async with FaultProxy(url) as proxy, Queue(queue_name, redis_url=proxy.url) as queue:
        await queue.add("warm", 0)
        # A connection that breaks young would be dialled more slowly.
        await asyncio.sleep(1.1)
        dialled, began_s = proxy.accept_count, time.monotonic()
        proxy.slam()
        adding = []
        while time.monotonic() < began_s + OUTAGE_S:
            timeout_ms = (0, 50, 500, 5_000)[len(adding) % 4]
            adding.append(
                asyncio.ensure_future(ended(queue.add("n", 1, add_timeout_ms=timeout_ms)))
            )
            await asyncio.sleep(0.05)
        dials = proxy.accept_count - dialled
        proxy.welcome()
        took_s = [took_s for took_s, _ in await asyncio.gather(*adding)]
        back_s, job = await ended(queue.add("n", 2, add_timeout_ms=10_000))

        print(f"{dials} dials in {OUTAGE_S:.0f} s, an add {back_s:.2f} s after it")
        assert dials <= DIALS_MAX
        assert max(took_s) <= 5.5 * patience()
        assert not isinstance(job, StoreError)


@takes_turns
@pytest.mark.parametrize("host", ["names that nobody answers", "a handshake that stalls"])
async def test_a_dial_that_hangs_is_given_up_in_time(queue_name, monkeypatch, host):
    """The look-up of a name and TLS are part of the time of a call."""
    ended_look_up = threading.Event()

    def silent_look_up(*_args, **_options):
        ended_look_up.wait(20)
        raise OSError("no answer")

    async with FaultProxy("redis://127.0.0.1:1") as proxy:
        proxy.blackhole()
        address = proxy.url.replace("redis://", "rediss://")
        if host.startswith("names"):
            monkeypatch.setattr("socket.getaddrinfo", silent_look_up)
            address = "redis://nobody.invalid:6379"
        async with Queue(queue_name, redis_url=address, command_timeout_ms=COMMAND_MS) as queue:
            for call in (queue.counts, lambda: queue.add("n", 1, add_timeout_ms=COMMAND_MS)):
                took_s, error = await ended(call())
                assert (type(error), error.outcome) in [
                    (ConnectionLost, "not_done"), (ConnectionLost, "unknown"),
                ]  # fmt: skip
                assert took_s <= ANSWER_S * patience()
            ended_look_up.set()


@takes_turns
async def test_thousands_of_late_adds_give_back_all_that_they_took(server, queue_name):
    """Each waits for the same answer before it gives its share back."""
    async with Queue(queue_name, redis_url=server.url) as queue:
        await queue.add("n", None)
        os.kill(server.pid, signal.SIGSTOP)
        try:
            adds = [
                queue.add("n", None, job_id=f"late-{at}", add_timeout_ms=300) for at in range(3_000)
            ]
            _, answers = await all_ended(adds)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert all(isinstance(one, ConnectionLost) for one in answers)

        await queue.add("n", None, add_timeout_ms=30_000)
        store = queue._store()
        # The last of them give it back in the rounds of the loop behind that answer.
        await eventually(
            lambda: (queue.unconfirmed_bytes, store.unconfirmed_jobs._inside) == (0, 0),
            within_s=2, what="all that late adds took given back",
        )  # fmt: skip
