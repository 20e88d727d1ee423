"""The probe finds what a server can do, leaves no trace, and lets itself be overruled."""

from __future__ import annotations

import pytest

from chasquimq import Queue, Worker
from chasquimq.errors import AbilityMissing, StoreError
from chasquimq.settings import AbilitySettings
from chasquimq.store.net.abilities import Abilities, probe
from support.servers import server_kinds
from support.waiting import eventually
from support.workers import RunningWorker

NAMES = ["ack_delete", "claim_on_read", "idempotent_add"]
KNOWN = {"valkey": False, "redis-8.6": True}


@pytest.fixture
def ask(raw):
    async def call(**wanted) -> Abilities:
        return await probe(raw.connection, raw.keys, AbilitySettings(**wanted))

    return call


@pytest.mark.parametrize("name", NAMES)
async def test_the_probe_finds_what_this_kind_of_server_can_do(ask, kind, name):
    found = getattr(await ask(), name)

    assert found is KNOWN.get(kind.label, found)


async def test_a_native_ability_is_one_whose_command_the_server_knows(ask, raw):
    found = await ask()
    known = await raw("COMMAND", "INFO", "XACKDEL", "XCFGSET")

    assert [found.ack_delete, found.idempotent_add] == [row is not None for row in known]


async def test_probing_writes_no_key(ask, snapshot):
    await ask()

    assert await snapshot() == {}


async def test_probing_leaves_a_queue_with_jobs_as_it_was(ask, deliver, snapshot):
    await deliver("me", 2)
    before = await snapshot()

    await ask()

    assert await snapshot() == before


@pytest.mark.parametrize("name", NAMES)
async def test_a_fallback_can_be_forced_alone(ask, name):
    free, forced = await ask(), await ask(**{name: False})

    assert getattr(forced, name) is False
    others = [other for other in NAMES if other != name]
    assert [getattr(forced, o) for o in others] == [getattr(free, o) for o in others]


@pytest.mark.parametrize("name", NAMES)
async def test_an_ability_asked_for_by_name_is_there_or_said_to_be_missing(ask, name):
    is_native = getattr(await ask(), name)

    try:
        said = f"{name} is {getattr(await ask(**{name: True}), name)}"
    except AbilityMissing as error:
        said = str(error)

    missing = (
        f"{name} was asked for, but this server lacks the command; "
        "use a newer server, or leave the choice to the probe"
    )
    assert said == (f"{name} is True" if is_native else missing)


async def test_a_queue_that_asks_for_what_is_missing_writes_nothing(
    url, queue_name, ask, snapshot, raw
):
    is_native = (await ask()).idempotent_add
    async with Queue(
        queue_name, redis_url=url, abilities=AbilitySettings(idempotent_add=True)
    ) as queue:
        try:
            await queue.add("n", 1)
            was_added = True
        except AbilityMissing:
            was_added = False

    assert was_added is is_native
    assert bool(await snapshot()) is is_native


@pytest.mark.own_server
async def test_the_probe_works_while_the_server_is_out_of_memory(raw):
    before = await probe(raw.connection, raw.keys, AbilitySettings())
    await raw("CONFIG", "SET", "maxmemory", 1)
    with pytest.raises(StoreError, match="OOM"):
        await raw("SET", "a", "b")

    assert await probe(raw.connection, raw.keys, AbilitySettings()) == before


async def test_a_server_of_another_kind_behind_the_same_address_is_asked_anew(
    kind, url, queue_name, proxy
):
    """A failover may lead to a server that knows fewer commands, or more of them."""
    others = [other for other in server_kinds() if other != kind]
    if not others:
        pytest.skip("one kind of server is no change")
    done = []

    async def handler(job) -> None:
        done.append(job.data)

    with others[0].session() as other:
        await move_and_work(proxy, other.url, queue_name, handler, done)


async def move_and_work(proxy, other_url: str, queue_name: str, handler, done: list) -> None:
    async with Queue(queue_name, redis_url=proxy.url) as queue:
        running = RunningWorker(Worker(queue_name, handler, redis_url=proxy.url))
        await running.until_consuming()
        await queue.add("n", "before")
        await eventually(lambda: done == ["before"])

        proxy.lead_to(other_url)
        proxy.cut()
        # A question dials anew. An add that leaves before the cut is noticed may be there already.
        await queue.counts()
        await queue.add_bulk([{"name": "n", "data": at} for at in range(20)])

        await eventually(lambda: done == ["before", *range(20)])
        await eventually(lambda: is_empty(queue))
        await running.stop()


async def is_empty(queue: Queue) -> bool:
    counts = await queue.counts()
    return not counts.ready and not counts.running
