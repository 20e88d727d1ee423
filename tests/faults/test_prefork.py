"""A server that forks its workers: each child talks on a socket of its own, or is told why not."""

from __future__ import annotations

import asyncio
import os

import pytest

from chasquimq import Queue
from chasquimq.errors import StoreError
from chasquimq.settings import ConnectionSettings
from chasquimq.store.net.connect import open_connection

CHILDREN, ADDS = 4, 50


@pytest.fixture
def loop():
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


async def add_some(queue: Queue) -> int:
    for at in range(ADDS):
        await queue.add("n", at)
    return ADDS


async def in_a_child(opened: Queue, url: str, name: str) -> str:
    """Use the parent's queue, which must be refused, then one of our own."""
    try:
        await opened.add("n", -1)
    except StoreError as refusal:
        said = str(refusal)
    else:
        return "the parent's connection was used"
    async with Queue(name, redis_url=url) as own:
        await add_some(own)
    return said


def fork(work) -> tuple[int, int]:
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        os.close(writer)
        return child, reader
    try:
        os.write(writer, asyncio.run(work()).encode())
    finally:
        os._exit(0)


def test_children_and_their_parent_add_side_by_side_without_a_shared_byte(url, queue_name, loop):
    opened = Queue(queue_name, redis_url=url)
    loop.run_until_complete(opened.add("n", 0))

    children = [fork(lambda: in_a_child(opened, url, queue_name)) for _ in range(CHILDREN)]
    loop.run_until_complete(add_some(opened))
    said = []
    for child, reader in children:
        os.waitpid(child, 0)
        with os.fdopen(reader) as pipe:
            said.append(pipe.read())

    counts = loop.run_until_complete(opened.counts())
    loop.run_until_complete(opened.close())
    assert all("open a new Queue or Worker after a fork" in text for text in said)
    assert counts.ready == 1 + ADDS * (CHILDREN + 1)


def test_an_open_connection_sends_nothing_after_a_fork(url, queue_name, loop):
    opened = loop.run_until_complete(open_connection(ConnectionSettings(url=url)))

    async def in_the_child() -> str:
        try:
            await opened.call("SET", queue_name, "from the child")
        except StoreError as refusal:
            return str(refusal)
        return "the parent's connection was used"

    child, reader = fork(in_the_child)
    os.waitpid(child, 0)
    with os.fdopen(reader) as pipe:
        said = pipe.read()

    assert "open a new Queue or Worker after a fork" in said
    assert loop.run_until_complete(opened.call("EXISTS", queue_name)) == 0
    loop.run_until_complete(opened.close())
