"""A password is in no message, no repr and no log line, whatever goes wrong."""

from __future__ import annotations

import asyncio
import logging
import traceback

import pytest

from chasquimq import Queue, Worker
from chasquimq.errors import ChasquiError
from chasquimq.settings import ConnectionSettings
from chasquimq.store.net.address import normal_url, redact
from chasquimq.store.net.blocking import BlockingConnection

CANARY = "canary-7f3a"

REDACTED = {
    "redis://host": "redis://host",
    "redis://host:6380/3": "redis://host:6380/3",
    "unix:///tmp/server.sock": "unix:///tmp/server.sock",
    "host:6380": "redis://host:6380",
    f"redis://:{CANARY}@host": "redis://:***@host",
    f"redis://user:{CANARY}@host:1/2": "redis://user:***@host:1/2",
    f"user:{CANARY}@host": "redis://user:***@host",
    f"redis://user:{CANARY}@x@host": "redis://user:***@host",
    f"redis://host?password={CANARY}": "redis://host",
    f"unix:///tmp/s.sock?password={CANARY}": "unix:///tmp/s.sock",
    f"unix://user:{CANARY}@/tmp/s.sock": "unix://user:***@/tmp/s.sock",
    f"redis://host?password=p@{CANARY}": "redis://***",
    f"redis://user:p@ss@host?password=p@{CANARY}": "redis://***",
    f"redis+sentinel://h:26379/m?sentinel_password=abc@{CANARY}": "redis+sentinel://***",
    f"redis://user:1234?x@{CANARY}": "redis://***",
    f"REDISS://User:{CANARY}@Host:1": "REDISS://User:***@Host:1",
    f"  redis://user:{CANARY}@host": "redis://user:***@host",
    f"valkeys-cluster://me:{CANARY}@h:1,h2:2?node=h3:3": "valkeys-cluster://me:***@h:1,h2:2",
    # A user alone, or a password without its colon: nobody knows.
    f"redis://{CANARY}@host": "redis://***@host",
    f"{CANARY}@host:1": "redis://***@host:1",
    "redis://[::1]:6379/0": "redis://[::1]:6379/0",
    "redis://[fe80::1%eth0]:6379": "redis://[fe80::1%eth0]:6379",
}
# Addresses with a slip of the pen: nobody knows any more where the password begins.
BROKEN = [
    f"rediss//user:{CANARY}@host",
    f"redis:/user:{CANARY}@host",
    f"http://user:{CANARY}@host",
    f"redis://user:{CANARY}/x@host",
    f"redis://user:{CANARY}#x@host",
    f"redis://user:{CANARY}?x@host",
    f"redis://user:{CANARY}@host:port",
    f"redis://user:{CANARY}@host:99999",
    f"redis://user:{CANARY}@host/db",
    f"redis://user:{CANARY}@[::1",
    f"redis://user:{CANARY}@",
    f"redis://host?password={CANARY}@x",
    f"redis://host?password=x@{CANARY}",
    f"redis://host#x@{CANARY}",
    f"redis://host/db?password={CANARY}",
    f"redis://:{CANARY}",
    f"redis://user:{CANARY}",
    f"redis://user:{CANARY}/0",
    f"redis://user:{CANARY}@host?no_such_option=1",
    f"redis://user:{CANARY}@host?db=none",
    f"redis://user:{CANARY}@host?password={CANARY}&db=none",
    f"REDIS://user:{CANARY}@host:port",
    f"VALKEYS://user:{CANARY}@host:99999",
    f"redis://user%3A{CANARY}%40host:99999",
    f"user%3A{CANARY}%40host:99999",
    f"redis://user:{CANARY}%40host",
    f"redis://user:pass/{CANARY}",
    f"redis://user:pass%2F{CANARY}",
    f"redis://[user:{CANARY}]",
    f"redis://[user:{CANARY}",
    f"user:{CANARY}@redis://host",
    f"user:{CANARY}@redis://user:1@host",
    f"redis:\\\\user:{CANARY}@host",
    f"unix://user:{CANARY}%40/run/s.sock?db=none",
    f"redis+sentinel://user%3A{CANARY}%40host",
]


def whole(error: BaseException) -> str:
    """Everything a log would show of an error, its causes and notes included."""
    return "".join(traceback.format_exception(error)) + repr(vars(error))


@pytest.mark.parametrize(("url", "shown"), REDACTED.items(), ids=REDACTED.values())
def test_an_address_is_shown_without_its_password(url, shown):
    assert redact(url) == shown


@pytest.mark.parametrize("url", BROKEN)
def test_a_broken_address_is_shown_without_what_may_be_its_password(url):
    assert CANARY not in redact(url)


@pytest.mark.parametrize("url", BROKEN)
async def test_no_refusal_of_an_address_holds_the_password(url):
    with pytest.raises((ChasquiError, ValueError, TypeError)) as caught:
        async with Queue("q", redis_url=url) as queue:
            await asyncio.wait_for(queue.add("n", 1), 5)

    assert CANARY not in str(caught.value)
    assert CANARY not in repr(caught.value)


@pytest.mark.parametrize("url", [f"redis://:{CANARY}@host".encode(), {"url": CANARY}, [CANARY]])
def test_an_address_that_is_no_text_is_refused_without_being_shown(url):
    with pytest.raises(ChasquiError) as caught:
        normal_url(url)

    assert CANARY not in whole(caught.value)


def test_no_repr_of_ours_holds_the_password():
    url = f"redis://user:{CANARY}@host"
    things = [
        ConnectionSettings(url=url),
        Queue("q", redis_url=url),
        Worker("q", print, redis_url=url),
        BlockingConnection(ConnectionSettings(url=url)),
    ]

    assert CANARY not in repr(things) + str(things)


@pytest.fixture
def everything_logged(caplog):
    caplog.set_level(logging.DEBUG)
    return lambda: caplog.text + repr([vars(record) for record in caplog.records])


async def test_no_server_is_told_without_the_password(everything_logged):
    async with Queue("q", redis_url=f"redis://user:{CANARY}@127.0.0.1:1") as queue:
        with pytest.raises(ChasquiError, match=r"redis://user:\*\*\*@127.0.0.1:1") as caught:
            await queue.add("n", 1)

    assert CANARY not in whole(caught.value) + everything_logged()


async def test_a_wrong_password_is_told_without_it(proxy, everything_logged):
    url = proxy.url.replace("redis://", f"redis://user:{CANARY}@")
    async with Queue("q", redis_url=url) as queue:
        with pytest.raises(ChasquiError) as caught:
            await queue.add("n", 1)

    assert CANARY not in whole(caught.value) + everything_logged()


async def test_an_outage_is_logged_without_the_password(proxy, raw, queue_name, everything_logged):
    await raw("ACL", "SETUSER", queue_name, "on", f">{CANARY}", "~*", "+@all")
    url = proxy.url.replace("redis://", f"redis://{queue_name}:{CANARY}@")
    async with Queue(queue_name, redis_url=url) as queue:
        await queue.add("n", 1)
        proxy.refuse()
        proxy.cut()
        adding = asyncio.ensure_future(queue.add("n", 2))
        await asyncio.wait([adding], timeout=0.5)
        await proxy.accept()
        await asyncio.wait_for(adding, 10)
    await raw("ACL", "DELUSER", queue_name)

    logged = everything_logged()
    assert "does not answer, dialling again" in logged
    assert CANARY not in logged


async def test_payloads_are_never_logged(queue, everything_logged):
    await queue.add("n", {"card": CANARY})

    assert CANARY not in everything_logged()
