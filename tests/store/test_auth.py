"""Who may talk to the server: passwords, users of an ACL, and providers that are asked each time."""

from __future__ import annotations

import asyncio
import logging
import time
from urllib.parse import urlsplit

import pytest

from chasquimq import Queue, Worker
from chasquimq.errors import CredentialsRefused, ServerRefused, ServerUnreachable, SettingsError
from chasquimq.settings import ConnectionSettings
from chasquimq.store.net.blocking import BlockingConnection
from chasquimq.store.net.reconnect import ReconnectingConnection
from support.adding import adding
from support.raw import Raw
from support.waiting import eventually
from support.workers import RunningWorker

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
async def locked(start_server):
    """A server of its own that asks everyone for SECRET."""
    url = start_server(port=0).url
    raw = await Raw.open(url, "q")
    await raw("CONFIG", "SET", "requirepass", SECRET)
    yield url
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


async def test_a_provider_that_raises_is_named_as_the_cause_without_its_words(
    add_at, proxy, caplog
):
    async def provider(address: str) -> tuple[str | None, str | None]:
        raise LookupError(f"the vault refused the token {SECRET}")

    with pytest.raises(ServerUnreachable, match=r"the credential provider.*LookupError") as caught:
        await add_at(proxy.url, credential_provider=provider)

    assert isinstance(caught.value.__cause__, LookupError)
    assert SECRET not in str(caught.value) + caplog.text


# What is answered, and how it is shown.
SHAPES = {
    "text": (SECRET, "str"),
    "two letters": ("ab", "str"),
    "bytes": (SECRET.encode(), "bytes"),
    "nothing": (None, "None"),
    "no parts": ((), "an empty tuple"),
    "an empty list": ([], "an empty list"),
    "three parts": (("user", SECRET, "more"), "a tuple of str, str, str"),
    "a nested pair": ((("user", SECRET),), "a tuple of tuple"),
    "numbers": ((1, 2), "a tuple of int, int"),
    "a user alone": (("user", None), "a tuple of str, None"),
    "an empty password": ((None, ""), "a tuple of None, an empty str"),
    "an empty user": (("", SECRET), "a tuple of an empty str, str"),
    "an empty text alone": (("",), "a tuple of an empty str"),
    "a mapping": ({"user": SECRET}, "dict"),
    "a set": ({"user", SECRET}, "set"),
}


def provider_of(answer, asked: list[str]):
    async def provider(address: str):
        asked.append(address)
        return answer

    return provider


@pytest.mark.parametrize("who", ["loop", "thread"])
@pytest.mark.parametrize(("answer", "shown"), SHAPES.values(), ids=SHAPES)
async def test_an_answer_of_another_shape_is_refused_before_anything_is_sent(
    add_at, proxy, answer, shown, who
):
    asked: list[str] = []
    provider = provider_of(answer, asked)
    settings = ConnectionSettings(url=proxy.url, credential_provider=provider)
    if who == "loop":
        dialled = add_at(proxy.url, credential_provider=provider)
    else:
        dialled = asyncio.to_thread(BlockingConnection(settings).call, "PING")

    with pytest.raises(CredentialsRefused) as caught:
        await dialled

    said = str(caught.value)
    assert said.startswith("what credential_provider answers must be a tuple of user and password")
    assert f"got {shown!r}" in said
    assert SECRET not in said
    assert isinstance(caught.value, SettingsError)
    assert (proxy.write_count, len(asked)) == (0, 1)


@pytest.mark.parametrize("answer", ["ab", None, ("user", None)])
async def test_an_answer_of_another_shape_is_refused_over_a_unix_socket_too(add_at, url, answer):
    with pytest.raises(CredentialsRefused):
        await add_at(url, credential_provider=provider_of(answer, []))


async def test_a_provider_that_is_no_coroutine_function_is_refused(add_at, proxy):
    with pytest.raises(CredentialsRefused, match="async"):
        await add_at(proxy.url, credential_provider=lambda _: ("user", SECRET))

    assert proxy.write_count == 0


class Spy(str):
    """A password that would speak of itself."""

    __slots__ = ()

    def encode(self, *_: object) -> bytes:
        raise RuntimeError(str(self))


async def test_a_password_that_no_byte_can_say_is_refused_without_being_shown(add_at, proxy):
    answer = ("default", f"{SECRET}\udcff")

    with pytest.raises(CredentialsRefused, match="text that UTF-8 cannot carry") as caught:
        await add_at(proxy.url, credential_provider=provider_of(answer, []))

    assert SECRET not in str(caught.value)
    assert proxy.write_count == 0


async def test_a_password_is_sent_as_text_whatever_its_class_says(add_at, locked):
    await add_at(locked, credential_provider=provider_of(("default", Spy(SECRET)), []))


async def test_a_provider_that_is_cancelled_by_itself_is_named_as_the_cause(add_at, proxy):
    async def provide(address: str):
        raise asyncio.CancelledError

    with pytest.raises(ServerUnreachable, match="the credential provider must give"):
        await add_at(proxy.url, credential_provider=provide)


@pytest.mark.parametrize("provider", ["user:password", ("user", SECRET), 5])
def test_a_provider_that_cannot_be_called_is_refused_without_being_shown(provider):
    with pytest.raises(SettingsError, match="credential_provider must be") as caught:
        ConnectionSettings(credential_provider=provider)

    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("answer", [[None, SECRET], (SECRET,), [SECRET], (None, SECRET.encode())])
async def test_lists_single_passwords_and_bytes_are_taken(add_at, locked, answer):
    await add_at(locked, credential_provider=provider_of(answer, []))


async def test_a_provider_beside_a_password_in_the_url_is_refused_by_name(add_at, proxy):
    url = with_credentials(proxy.url, f"user:{QUOTED}")

    with pytest.raises(SettingsError, match="credential_provider") as caught:
        await add_at(url, credential_provider=provider_of((None, SECRET), []))

    assert QUOTED not in str(caught.value)
    assert proxy.accept_count == 0


async def test_a_thread_does_not_wait_for_ever_for_a_provider(proxy):
    async def provider(address: str):
        await asyncio.Event().wait()

    settings = ConnectionSettings(
        url=proxy.url, credential_provider=provider, connect_timeout_ms=200
    )
    call = asyncio.to_thread(BlockingConnection(settings).call, "PING")
    with pytest.raises(ServerUnreachable, match=r"the credential provider.*TimeoutError"):
        await asyncio.wait_for(call, 5)


@pytest.mark.parametrize("trouble", ["wrong shape", "raises"])
async def test_a_running_worker_asks_a_bad_provider_by_the_ladder(
    proxy, user, queue_name, caplog, trouble
):
    asked: list[float] = []
    is_bad = False

    async def provider(address: str):
        asked.append(time.monotonic())
        if is_bad and trouble == "raises":
            raise LookupError(SECRET)
        return f"{user} {SECRET}" if is_bad else (user, SECRET)

    ran = asyncio.Event()

    async def handle(job):
        ran.set()

    worker = Worker(queue_name, handle, redis_url=proxy.url, credential_provider=provider)
    running = RunningWorker(worker)
    await running.until_consuming()
    is_bad = True
    asked.clear()
    proxy.cut()
    await asyncio.sleep(4)

    # A reader and a writer, five dials each at most.
    assert 2 <= len(asked) <= 12
    lines = [one for one in caplog.records if one.levelno >= logging.WARNING]
    assert 1 <= len(lines) <= 2, lines
    assert not [one for one in lines if one.exc_info]
    assert SECRET not in caplog.text
    is_bad = False
    async with Queue(queue_name, redis_url=proxy.url, credential_provider=provider) as queue:
        await queue.add("n", 1)
    await asyncio.wait_for(ran.wait(), 10)
    await running.stop()


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


async def test_a_link_that_was_open_and_lacks_a_right_now_dials_ever_more_slowly(url):
    refusals: list[ServerRefused] = []

    async def prepare(_connection) -> None:
        if refusals:
            raise refusals[0]

    async def is_open() -> bool:
        try:
            await link.connection()
        except ServerRefused:
            return False
        return True

    link = ReconnectingConnection(ConnectionSettings(url=url), prepare=prepare)
    (await link.connection()).abort("cut off")
    refusals.append(ServerRefused("this user must be allowed to run XPENDING", code="NOPERM"))
    dialled, until_s = link.dial_count, time.monotonic() + 2
    while time.monotonic() < until_s:
        assert not await is_open()
        await asyncio.sleep(0.02)

    assert 0 < link.dial_count - dialled <= 10
    refusals.clear()
    await eventually(is_open)
    await link.close()
