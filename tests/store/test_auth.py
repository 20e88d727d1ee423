"""Who may talk to the server: passwords, users of an ACL, and providers that are asked each time."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import pytest

from chasquimq.errors import ServerRefused, ServerUnreachable
from chasquimq.settings import ConnectionSettings
from chasquimq.store.blocking import BlockingConnection
from support.adding import adding
from support.raw import Raw

SECRET = "p@ss/w:rd?#1"
QUOTED = "p%40ss%2Fw%3Ard%3F%231"


@pytest.fixture
async def user(raw, queue_name):
    """A user of the server's ACL with SECRET as its password; gone after the test."""
    await raw("ACL", "SETUSER", queue_name, "on", f">{SECRET}", "~*", "+@all")
    yield queue_name
    await raw("ACL", "DELUSER", queue_name)


@pytest.fixture
async def is_terse(raw) -> bool:
    """Whether the server is a Redis before 7.2, which does not say whom it refused."""
    facts = (await raw("INFO", "server")).decode()
    major, minor = facts.partition("redis_version:")[2].split(".")[:2]
    return (int(major), int(minor)) < (7, 2)


@pytest.fixture
async def locked(kind):
    """A server of its own that asks everyone for SECRET."""
    with kind.session(port=0) as server:
        raw = await Raw.open(server.url, "q")
        await raw("CONFIG", "SET", "requirepass", SECRET)
        yield server.url
        await raw.close()


@pytest.fixture
async def add_at(queue_name):
    async with adding(queue_name) as add:
        yield add


def with_credentials(url: str, credentials: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=f"{credentials}@{parts.netloc}").geturl()


@pytest.mark.parametrize("way", ["unix", "tcp"])
async def test_a_user_of_the_acl_adds_with_its_password(add_at, url, proxy, user, raw, way):
    await add_at(with_credentials(url if way == "unix" else proxy.url, f"{user}:{QUOTED}"))

    assert await raw("XLEN", raw.keys.stream) == 1


async def test_a_password_alone_is_the_default_users(add_at, locked):
    await add_at(with_credentials(locked, f":{QUOTED}"))


async def test_a_thread_authenticates_the_same_way(locked):
    connection = BlockingConnection(ConnectionSettings(url=with_credentials(locked, f":{QUOTED}")))

    assert await asyncio.to_thread(connection.call, "PING") == b"PONG"
    connection.close()


@pytest.mark.parametrize("credentials", [":wrong", "nobody:wrong"])
async def test_a_wrong_password_is_one_sentence_that_does_not_hold_it(add_at, locked, credentials):
    with pytest.raises(ServerRefused) as caught:
        await add_at(with_credentials(locked, credentials))

    said = str(caught.value)
    user = credentials.partition(":")[0]
    address = locked.removeprefix("redis://")
    assert said.startswith(
        f"the server at redis://{user}:***@{address} must accept the credentials"
    )
    assert said.endswith("correct user and password in the URL or the credential provider")
    assert "\n" not in said
    assert caught.value.code == "WRONGPASS"


async def test_a_missing_password_is_told_like_a_wrong_one(add_at, locked):
    with pytest.raises(ServerRefused, match="must accept the credentials") as caught:
        await add_at(locked)

    assert caught.value.code == "WRONGPASS"


async def test_a_thread_hears_the_same_about_a_wrong_password(locked):
    connection = BlockingConnection(ConnectionSettings(url=with_credentials(locked, ":wrong")))

    with pytest.raises(ServerRefused, match="must accept the credentials"):
        await asyncio.to_thread(connection.call, "PING")


async def test_a_user_without_the_right_to_add_is_told_which_right_is_missing(
    add_at, url, user, raw, is_terse
):
    await raw("ACL", "SETUSER", user, "-xadd", "-eval", "-evalsha")

    who = "this user" if is_terse else f"the user '{user}'"
    told = f"^{who} must be allowed to run (XADD|EVAL, EVALSHA and XADD) and is not"
    with pytest.raises(ServerRefused, match=told):
        await add_at(with_credentials(url, f"{user}:{QUOTED}"))


@pytest.mark.parametrize("way", ["unix", "tcp"])
async def test_a_right_that_the_handshake_lacks_is_not_told_as_a_wrong_password(
    add_at, url, proxy, user, raw, way
):
    await raw("ACL", "SETUSER", user, "-client")

    with pytest.raises(ServerRefused, match="must be allowed to run CLIENT SETNAME") as caught:
        await add_at(with_credentials(url if way == "unix" else proxy.url, f"{user}:{QUOTED}"))

    assert caught.value.code == "NOPERM"


async def test_a_right_that_only_a_script_needs_is_named(add_at, url, user, raw, is_terse):
    await raw("ACL", "SETUSER", user, "-zadd")
    queue = await add_at(with_credentials(url, f"{user}:{QUOTED}"))

    told = f"^the user '{user}' must be allowed to run ZADD"
    if is_terse:  # inside a script such a server does not tell what it refused, either
        told = "^this user must be allowed to do this, the server says"
    with pytest.raises(ServerRefused, match=told):
        await queue.add("later", 1, delay_ms=60_000, job_id="own")


async def test_a_provider_is_asked_for_each_handshake_with_the_address(add_at, proxy, user, raw):
    asked = []

    async def provider(address: str) -> tuple[str | None, str | None]:
        asked.append(address)
        return user, SECRET if len(asked) == 1 else "rotated"

    queue = await add_at(proxy.url, credential_provider=provider)
    await raw("ACL", "SETUSER", user, ">rotated", f"<{SECRET}")
    proxy.cut()
    await asyncio.wait_for(queue.add("n", 2), 10)

    assert asked == [proxy.url.removeprefix("redis://")] * 2


@pytest.mark.parametrize("answer", [(None, SECRET), ("default", SECRET)])
async def test_a_provider_may_leave_the_user_out(add_at, locked, answer):
    async def provider(address: str) -> tuple[str | None, str | None]:
        return answer

    await add_at(locked, credential_provider=provider)


async def test_a_provider_that_gives_nothing_leaves_the_connection_open_to_all(add_at, proxy):
    async def provider(address: str) -> tuple[str | None, str | None]:
        return None, None

    await add_at(proxy.url, credential_provider=provider)


async def test_a_provider_in_a_thread_is_asked_too(locked):
    async def provider(address: str) -> tuple[str | None, str | None]:
        return None, SECRET

    connection = BlockingConnection(ConnectionSettings(url=locked, credential_provider=provider))

    assert await asyncio.to_thread(connection.call, "PING") == b"PONG"
    connection.close()


@pytest.mark.parametrize("way", ["raises", "gives no pair"])
async def test_a_provider_that_fails_is_named_as_the_cause(add_at, proxy, way):
    async def provider(address: str) -> tuple[str | None, str | None]:
        if way == "raises":
            raise LookupError("the vault is sealed")
        return None  # pyright: ignore[reportReturnType]

    with pytest.raises(ServerUnreachable, match="the credential provider") as caught:
        await add_at(proxy.url, credential_provider=provider)

    assert isinstance(caught.value.__cause__, LookupError | TypeError)


async def test_a_provider_that_fails_once_costs_an_open_queue_only_time(add_at, proxy, user):
    asked = []

    async def provider(address: str) -> tuple[str | None, str | None]:
        asked.append(address)
        if len(asked) == 2:
            raise LookupError("the vault is sealed")
        return user, SECRET

    queue = await add_at(proxy.url, credential_provider=provider)
    proxy.cut()

    await asyncio.wait_for(queue.add("n", 2), 10)

    assert len(asked) == 3
