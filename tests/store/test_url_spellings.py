"""However a URL is spelled, TLS is on where it was asked for, and what weakens it is said aloud."""

from __future__ import annotations

import asyncio
import warnings
from contextlib import asynccontextmanager

import pytest

from chasquimq.errors import ServerUnreachable, SettingsError, StoreError
from chasquimq.queue.inspector import Inspector
from chasquimq.queue_events import QueueEvents
from chasquimq.settings import ConnectionSettings
from chasquimq.store.net.address import (
    connection_settings,
    new_async_connection,
    new_blocking_connection,
    normal_url,
)
from chasquimq.store.net.blocking import BlockingConnection
from chasquimq.store.net.connect import dial
from chasquimq.store.net.route import Route
from chasquimq.worker import Worker
from chasquimq.worker.upkeep import Upkeep
from store.certificates import Authority
from support.adding import adding
from support.faultproxy import FaultProxy

SECRET = "canary-7f3a"
TLS_RECORD = 0x16
# What begins a URL of hosts, and what it means.
PLAIN = {
    "redis": "redis",
    "REDIS": "redis",
    "Redis": "redis",
    "valkey": "redis",
    "Valkey": "redis",
    "redis+cluster": "redis+cluster",
    "REDIS+CLUSTER": "redis+cluster",
    "redis-cluster": "redis+cluster",
    "Redis-Cluster": "redis+cluster",
    "valkey-cluster": "redis+cluster",
    "valkey+cluster": "redis+cluster",
    "redis+sentinel": "redis+sentinel",
    "Redis+Sentinel": "redis+sentinel",
    "VALKEY+SENTINEL": "redis+sentinel",
}
SAFE = {
    "rediss": "rediss",
    "REDISS": "rediss",
    "rediSS": "rediss",
    "valkeys": "rediss",
    "VALKEYS": "rediss",
    "rediss+cluster": "rediss+cluster",
    "RedisS+Cluster": "rediss+cluster",
    "rediss-cluster": "rediss+cluster",
    "REDISS-CLUSTER": "rediss+cluster",
    "valkeys-cluster": "rediss+cluster",
    "valkeys+cluster": "rediss+cluster",
    "REDISS+SENTINEL": "rediss+sentinel",
    "valkeys+sentinel": "rediss+sentinel",
}
BLANKS = ["{}", "  {}", "{} \n", "\t{}\r\n"]
WEAKENING = ["ssl_cert_reqs=none", "ssl_cert_reqs=Optional", "ssl_check_hostname=false",
             "ssl_check_hostname=F", "db=0&ssl_cert_reqs=NONE"]  # fmt: skip
ONE_OF_EACH = ["rediss", "REDISS", "valkeys", "Rediss+Cluster", "REDISS-CLUSTER", "rediss+SENTINEL"]


def spelled(scheme: str, place: str, query: str = "") -> str:
    path = "/main" if "sentinel" in scheme.lower() else ""
    return f"{scheme}://{place}{path}{'?' + query if query else ''}"


@pytest.mark.parametrize("blanks", BLANKS)
@pytest.mark.parametrize(("scheme", "meant"), (PLAIN | SAFE).items())
def test_a_scheme_means_the_same_in_every_spelling(scheme, meant, blanks):
    place = "User:Pass%20Word@Host:1"

    assert normal_url(blanks.format(spelled(scheme, place))) == spelled(meant, place)


@pytest.mark.parametrize("blanks", BLANKS)
@pytest.mark.parametrize(("scheme", "meant"), (PLAIN | SAFE).items())
def test_tls_is_turned_on_in_every_spelling(scheme, meant, blanks):
    safe = meant if meant.startswith("rediss") else meant.replace("redis", "rediss", 1)

    assert normal_url(blanks.format(spelled(scheme, "h:1")), tls=True) == spelled(safe, "h:1")


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("scheme", ["unix", "UNIX", "Unix", "  uNIX"])
async def test_a_unix_socket_is_found_in_every_spelling(url, scheme, tls, queue_name):
    path = url.partition("://")[2]

    async with adding(queue_name) as add:
        await add(f"{scheme}://{path}", tls=tls)


def test_a_host_without_a_scheme_keeps_its_case_and_its_tls():
    assert normal_url("Host:6380", tls=True) == "rediss://Host:6380"
    assert normal_url(" REDIS:6379 ") == "redis://REDIS:6379"


@pytest.mark.parametrize(
    "scheme", ["redi ss", "red\tiss", "rediss\n", "\x00rediss", "rédiss", "HTTP"]
)
def test_a_scheme_that_is_none_is_refused(scheme):
    with pytest.raises(SettingsError, match="redis_url must be redis://, rediss://, valkey://, "):
        normal_url(f"{scheme}://:{SECRET}@host:1", tls=True)


@pytest.mark.parametrize(
    "url", ["rediss:me:{}@host", "REDISS:\\\\me:{}@host:1", "rediss:{}@host", "valkeys:me:{}@host"]
)
def test_a_safe_scheme_without_its_slashes_is_no_user(url):
    with pytest.raises(SettingsError, match="redis_url must be redis://, rediss://") as refused:
        normal_url(url.format(SECRET))

    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("host", ["rediss", "rediss:6379", "rediss:6379/1", "rediss.example:1"])
def test_a_host_may_be_called_as_a_scheme_is(host):
    assert normal_url(host) == f"redis://{host}"


def test_bytes_that_are_no_text_are_refused():
    with pytest.raises(SettingsError, match="text that UTF-8 can carry") as refused:
        normal_url(f"redis://me:{SECRET}\udcff@host")

    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("who", [new_async_connection, new_blocking_connection])
@pytest.mark.parametrize(
    "option", ["retry=1", "redis_connect_func=x", "encoding=x", "credential_provider=x",
               "maint_notifications_config=x", "decode_responses=1"]
)  # fmt: skip
def test_an_option_that_no_url_can_say_is_refused(who, option):
    name = option.partition("=")[0]
    settings = ConnectionSettings(url=f"redis://:{SECRET}@127.0.0.1:1?{option}")

    with pytest.raises(SettingsError, match=f"redis_url must be a URL without {name}"):
        who(settings)


@pytest.mark.parametrize("tls", ["false", 0, None, ""])
def test_tls_is_true_or_false_and_nothing_that_counts_as_one(tls):
    with pytest.raises(SettingsError, match="tls must be True or False"):
        normal_url("redis://host", tls=tls)


@asynccontextmanager
async def eavesdropping():
    """A place to dial, and the bytes that came there."""
    heard: list[bytes] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read(4096))
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", heard


def dialled(kind: str, settings: ConnectionSettings):
    """What dials: an event loop's connection, or a thread's."""
    if kind == "loop":
        return dial(Route(settings))
    return asyncio.to_thread(BlockingConnection(settings).call, "PING")


@pytest.mark.parametrize("who", ["loop", "thread"])
@pytest.mark.parametrize("insecure", [False, True])
@pytest.mark.parametrize(
    ("scheme", "tls"), [*((one, True) for one in PLAIN), *((one, False) for one in SAFE)]
)
async def test_no_password_leaves_in_plain_text_where_tls_was_asked_for(scheme, tls, who, insecure):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        async with eavesdropping() as (place, heard):
            url = spelled(
                scheme,
                f"me:{SECRET}@{place}",
                f"sentinel_password={SECRET}" if "sentinel" in scheme.lower() else "",
            )
            settings = ConnectionSettings(
                url=url, tls=tls, insecure_tls=insecure, connect_timeout_ms=2_000
            )
            with pytest.raises(StoreError):
                await dialled(who, settings)

    assert heard
    assert {first[0] for first in heard} == {TLS_RECORD}
    assert SECRET.encode() not in b"".join(heard)


@pytest.fixture(scope="session")
def stranger(tmp_path_factory):
    """A certificate that nobody vouches for."""
    return Authority(tmp_path_factory.mktemp("stranger")).self_signed("stranger")


def at(proxy: FaultProxy, scheme: str, query: str = "") -> str:
    return spelled(scheme, proxy.url.partition("://")[2], query)


@pytest.mark.parametrize("who", ["loop", "thread"])
@pytest.mark.parametrize("scheme", ONE_OF_EACH)
async def test_an_unknown_certificate_is_refused_in_every_spelling(url, stranger, scheme, who):
    async with FaultProxy(url, stranger) as proxy:
        with pytest.raises(ServerUnreachable, match="certificate"):
            await dialled(who, ConnectionSettings(url=at(proxy, scheme)))


@pytest.mark.parametrize("who", ["loop", "thread"])
@pytest.mark.parametrize("query", ["", *WEAKENING])
@pytest.mark.parametrize("scheme", ["rediss", "REDISS", "Valkeys"])
async def test_insecure_tls_holds_in_every_spelling_and_warns(url, stranger, scheme, query, who):
    async with FaultProxy(url, stranger) as proxy:
        settings = ConnectionSettings(url=at(proxy, scheme, query), insecure_tls=True)
        with pytest.warns(UserWarning, match="insecure_tls: the server's certificate is not"):
            connection = await dialled(who, settings)
        if who == "loop":
            await connection.close()


@pytest.mark.parametrize("query", WEAKENING)
@pytest.mark.parametrize("scheme", [*ONE_OF_EACH, "REDIS", "redis-cluster"])
def test_a_url_that_weakens_tls_is_refused_before_anything_is_dialled(scheme, query):
    url = spelled(scheme, f"me:{SECRET}@host:1", query)
    options = {"tls": scheme not in ONE_OF_EACH, "insecure_tls": False, "credential_provider": None}

    with pytest.raises(SettingsError, match=r"insecure_tls=True") as caught:
        connection_settings(url, **options)

    assert SECRET not in str(caught.value)


MADE = {
    "Worker": lambda url, **more: Worker("q", print, redis_url=url, **more),
    "Inspector": lambda url, **more: Inspector(redis_url=url, **more),
    "QueueEvents": lambda url, **more: QueueEvents("q", redis_url=url, **more),
    "Upkeep": lambda url, **more: Upkeep("q", redis_url=url, **more),
}


@pytest.mark.parametrize("made", MADE)
def test_whatever_takes_a_url_refuses_one_that_weakens_tls(made):
    with pytest.raises(SettingsError, match="insecure_tls=True"):
        MADE[made]("REDIS://host?ssl_cert_reqs=none", tls=True)


@pytest.mark.parametrize("scheme", ["redis", "REDIS", "valkey", "redis-cluster", "redis+sentinel"])
def test_options_of_tls_need_tls(scheme):
    with pytest.raises(SettingsError, match=r"ssl_ca_certs.*tls=True"):
        Route(ConnectionSettings(url=spelled(scheme, "host:1", "ssl_ca_certs=ca.pem")))
