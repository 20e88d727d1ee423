"""A stream that somebody deletes while an answer is lost: who remembers what was sent."""

from __future__ import annotations

import asyncio

import pytest

from chasquimq import Queue
from chasquimq.settings import AbilitySettings
from support.waiting import eventually

BY_SCRIPT = AbilitySettings(idempotent_add=False)
# What a stream that an add made anew remembers of a native producer, until it is told otherwise.
REMEMBERED_MAX = 100


@pytest.fixture
def added_again(proxy, url, queue_name, raw):
    """Add so many jobs after the stream was deleted, twice; answers how many there are."""

    async def act(count: int, abilities: AbilitySettings | None = None, *, beside: bool) -> int:
        async with Queue(queue_name, redis_url=proxy.url, abilities=abilities) as queue:
            await queue.add("warm", 0)
            await raw("DEL", raw.keys.stream)
            proxy.drop_replies()
            bulk = [{"name": "n", "data": at} for at in range(count)]
            adding = asyncio.ensure_future(queue.add_bulk(bulk))
            await eventually(lambda: has_jobs(raw, count))
            if beside:
                await add_one_more(url, queue_name, abilities)
            proxy.cut()
            proxy.thaw()
            await asyncio.wait_for(adding, 20)
        return await raw("XLEN", raw.keys.stream) - beside

    return act


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside a new producer"])
async def test_a_script_remembers_a_write_whatever_became_of_the_stream(added_again, beside):
    assert await added_again(300, BY_SCRIPT, beside=beside) == 300


async def test_a_resend_as_small_as_the_memory_of_a_new_stream_is_added_once(added_again):
    assert await added_again(REMEMBERED_MAX, beside=False) == REMEMBERED_MAX


@pytest.mark.parametrize(
    ("count", "beside"),
    [(REMEMBERED_MAX + 200, False), (1, True)],
    ids=["a large bulk", "beside a new producer"],
)
async def test_what_a_new_stream_has_forgotten_is_added_twice_by_native_ids_alone(
    added_again, queue, count, beside
):
    """The page of conditions documents this limit; a change that lifts it changes that page."""
    is_native = (await queue._store().abilities()).idempotent_add

    found = await added_again(count, beside=beside)

    assert found == (2 * count if is_native else count)


async def has_jobs(raw, count: int) -> bool:
    return await raw("XLEN", raw.keys.stream) == count


async def add_one_more(url: str, queue_name: str, abilities: AbilitySettings | None) -> None:
    async with Queue(queue_name, redis_url=url, abilities=abilities) as other:
        await other.add("other", 0)
