"""Scripts by name, deliveries to play with, and a picture of everything a queue has on the server."""

from __future__ import annotations

import asyncio

import pytest

from chasquimq.cli.app import main
from chasquimq.store.net import script
from support.faultproxy import FaultProxy

GROUP = "default"


@pytest.fixture
def run(raw):
    """Call a script as the store does."""

    async def call(name, keys, *args):
        return await script.run(raw.connection, name, keys, *args)

    return call


@pytest.fixture
def say(capsys):
    """Run a command in this process."""

    async def run(*args: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = await asyncio.to_thread(main, list(args))
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


@pytest.fixture
def deliver(raw):
    """Add entries and hand them to a consumer; answers their ids."""

    async def give(consumer: str, count: int = 1) -> list[bytes]:
        stream = raw.keys.stream
        if not await raw("EXISTS", stream):
            await raw("XGROUP", "CREATE", stream, GROUP, "0", "MKSTREAM")
        for at in range(count):
            await raw("XADD", stream, "*", "d", f"job {at}")
        reply = await raw(
            "XREADGROUP", "GROUP", GROUP, consumer, "COUNT", count, "STREAMS", stream, ">"
        )
        return [entry[0] for entry in reply[0][1]]

    return give


@pytest.fixture
def snapshot(raw):
    """Every key of the queue with its bytes; two that are equal mean that nothing was written."""

    async def take() -> dict[bytes, bytes]:
        found = await raw("KEYS", "{chasqui:" + raw.keys.queue + "}:*")
        return {key: await raw("DUMP", key) for key in sorted(found)}

    return take


@pytest.fixture
async def proxy(url):
    async with FaultProxy(url) as proxy:
        yield proxy
