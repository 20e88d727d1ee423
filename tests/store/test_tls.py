"""TLS: a server is believed when an authority we trust vouches for its name, and only then."""

from __future__ import annotations

import asyncio
import ssl
import warnings

import pytest

from chasquimq import Queue
from chasquimq.errors import ServerUnreachable, SettingsError
from chasquimq.settings import ConnectionSettings
from chasquimq.store.net.blocking import BlockingConnection
from chasquimq.store.net.connect import open_connection
from store.certificates import Authority
from support.adding import adding
from support.faultproxy import FaultProxy
from support.waiting import eventually

SECRET = "hush-hush"


@pytest.fixture(scope="session")
def authority(tmp_path_factory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def bad_certificates(authority) -> dict:
    return {
        "self-signed": authority.self_signed("self"),
        "wrong host": authority.server("other", host="DNS:other.example"),
        "expired": authority.server("expired", days=-1),
    }


@pytest.fixture
async def good(url, authority):
    """A server with a certificate that the authority signed for its address."""
    async with FaultProxy(url, authority.server("good")) as proxy:
        yield proxy


@pytest.fixture
async def add_at(queue_name):
    async with adding(queue_name) as add:
        yield add


async def test_an_authority_named_in_the_url_is_trusted(add_at, good, authority, raw):
    await add_at(f"{good.url}?ssl_ca_certs={authority.certificate}")

    assert await raw("XLEN", raw.keys.stream) == 1


async def test_an_authority_named_in_the_environment_is_trusted(
    add_at, good, authority, monkeypatch
):
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))

    await add_at(good.url)


async def test_the_tls_option_turns_a_plain_address_into_a_safe_one(add_at, good, authority):
    plain = good.url.replace("rediss://", "redis://")

    await add_at(f"{plain}?ssl_ca_certs={authority.certificate}", tls=True)


async def test_bulks_larger_than_a_tls_record_pass(add_at, good, authority, raw):
    queue = await add_at(f"{good.url}?ssl_ca_certs={authority.certificate}")

    await queue.add_bulk([{"name": "n", "data": "x" * 1_000}] * 2_000)

    assert await raw("XLEN", raw.keys.stream) == 2_001


async def test_a_cut_tls_connection_is_dialled_again(add_at, good, authority, raw):
    queue = await add_at(f"{good.url}?ssl_ca_certs={authority.certificate}")

    good.cut()

    await asyncio.wait_for(queue.add("n", 2), 10)
    assert await raw("XLEN", raw.keys.stream) == 2


async def test_a_thread_checks_certificates_the_same_way(good, authority):
    trusting = BlockingConnection(
        ConnectionSettings(url=f"{good.url}?ssl_ca_certs={authority.certificate}")
    )
    doubting = BlockingConnection(ConnectionSettings(url=good.url))

    assert await asyncio.to_thread(trusting.call, "PING") == b"PONG"
    with pytest.raises(ServerUnreachable, match="certificate"):
        await asyncio.to_thread(doubting.call, "PING")
    trusting.close()


@pytest.mark.parametrize("flaw", ["self-signed", "wrong host", "expired"])
async def test_a_certificate_that_does_not_hold_is_refused(
    add_at, url, authority, bad_certificates, flaw, snapshot
):
    async with FaultProxy(url, bad_certificates[flaw]) as proxy:
        with pytest.raises(ServerUnreachable, match="certificate"):
            await add_at(f"{proxy.url}?ssl_ca_certs={authority.certificate}")

    assert await snapshot() == {}


async def test_an_authority_that_nobody_named_is_not_trusted(add_at, good):
    with pytest.raises(ServerUnreachable, match="certificate"):
        await add_at(good.url)


@pytest.mark.parametrize("flaw", ["self-signed", "wrong host", "expired"])
async def test_insecure_tls_connects_to_anyone_and_warns(add_at, url, bad_certificates, flaw):
    async with FaultProxy(url, bad_certificates[flaw]) as proxy:
        with pytest.warns(UserWarning, match="insecure_tls: the server's certificate is not"):
            await add_at(proxy.url, insecure_tls=True)


@pytest.mark.parametrize("option", ["ssl_cert_reqs=none", "ssl_check_hostname=false"])
async def test_a_url_cannot_turn_the_checks_off(add_at, url, bad_certificates, option):
    async with FaultProxy(url, bad_certificates["wrong host"]) as proxy:
        with pytest.raises(SettingsError, match="insecure_tls=True"):
            await add_at(f"{proxy.url}?{option}")


async def test_a_safe_address_never_falls_back_to_plain_talk(proxy):
    safe = proxy.url.replace("redis://", "rediss://")

    with pytest.raises(ServerUnreachable):
        await open_connection(ConnectionSettings(url=safe, connect_timeout_ms=300))


@pytest.mark.parametrize("option", ["ssl_ca_certs", "ssl_certfile", "ssl_keyfile"])
def test_a_file_of_the_url_that_is_not_there_is_named_before_anything_is_dialled(
    option, authority, tmp_path
):
    beside = f"ssl_certfile={authority.certificate}&" if option == "ssl_keyfile" else ""
    url = f"rediss://me:{SECRET}@127.0.0.1:1/0?{beside}{option}={tmp_path}/none.pem"

    with pytest.raises(SettingsError, match=f"{option}.*none.pem: No such file") as caught:
        Queue("q", redis_url=url)

    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("option", ["ssl_ca_certs", "ssl_certfile"])
def test_a_file_of_the_url_that_holds_no_certificate_is_refused(option, tmp_path):
    (tmp_path / "note.pem").write_text("not a certificate")

    with pytest.raises(SettingsError, match=rf"{option}.*note.pem: (?!No such)"):
        Queue("q", redis_url=f"rediss://127.0.0.1:1/0?{option}={tmp_path}/note.pem")


def test_a_key_without_its_certificate_is_refused(authority):
    with pytest.raises(SettingsError, match="ssl_certfile beside ssl_keyfile"):
        Queue("q", redis_url=f"rediss://127.0.0.1:1/0?ssl_keyfile={authority.certificate}")


def test_a_client_certificate_and_its_key_are_taken(authority):
    authority.server("client")
    here = authority.certificate.parent

    Queue("q", redis_url=f"rediss://h?ssl_certfile={here}/client.pem&ssl_keyfile={here}/client.key")


async def test_a_file_that_is_gone_after_the_start_is_waited_for_by_name(
    add_at, good, authority, tmp_path, caplog, raw
):
    """Certificates are rotated: a file may be away for a moment."""
    copy = tmp_path / "ca.pem"
    copy.write_bytes(authority.certificate.read_bytes())
    queue = await add_at(f"{good.url}?ssl_ca_certs={copy}")
    copy.unlink()

    good.cut()
    adding_on = asyncio.ensure_future(queue.add("n", 2))
    await eventually(lambda: "ssl_ca_certs" in said_of_outages(caplog))
    copy.write_bytes(authority.certificate.read_bytes())

    await asyncio.wait_for(adding_on, 10)
    assert await raw("XLEN", raw.keys.stream) == 2


def said_of_outages(caplog) -> str:
    return " ".join(getattr(record, "chasqui_error", "") for record in caplog.records)


@pytest.mark.parametrize("insecure", [False, True])
@pytest.mark.parametrize(
    ("option", "allowed"),
    [
        ("ssl_cert_reqs=quatsch", "required, optional or none"),
        ("ssl_check_hostname=quatsch", "true or false"),
    ],
)
def test_a_value_that_a_tls_option_does_not_know_is_refused(option, allowed, insecure):
    with pytest.raises(SettingsError, match=f"{allowed}.*quatsch"):
        Queue("q", redis_url=f"rediss://127.0.0.1:1/0?{option}", insecure_tls=insecure)


@pytest.mark.parametrize("who", ["loop", "thread"])
async def test_tls_to_a_plain_port_says_that_it_may_be_plain(proxy, who):
    safe = proxy.url.replace("redis://", "rediss://")

    with pytest.raises(ServerUnreachable, match="the port may not speak TLS"):
        await dialled(who, ConnectionSettings(url=safe, connect_timeout_ms=300))


@pytest.mark.parametrize("who", ["loop", "thread"])
async def test_plain_talk_to_a_tls_port_says_that_it_may_want_tls(good, who):
    plain = good.url.replace("rediss://", "redis://")

    with pytest.raises(ServerUnreachable, match=r"the port may speak TLS only.*rediss://"):
        await dialled(who, ConnectionSettings(url=plain, connect_timeout_ms=2_000))


async def dialled(who: str, settings: ConnectionSettings) -> None:
    if who == "loop":
        await open_connection(settings)
    else:
        await asyncio.to_thread(BlockingConnection(settings).call, "PING")


async def test_a_certificate_that_nobody_vouches_for_names_the_remedy(good):
    with pytest.raises(ServerUnreachable, match="ssl_ca_certs") as caught:
        await open_connection(ConnectionSettings(url=good.url))

    assert "server start" not in str(caught.value)


async def test_a_plain_address_warns_of_nothing(add_at, proxy):
    with warnings.catch_warnings():
        warnings.simplefilter("error")

        await add_at(proxy.url, insecure_tls=True)


@pytest.fixture
async def nameless():
    """A server of TLS that shows no certificate at all."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("aNULL:@SECLEVEL=0")
    heard: list[bytes] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read(100))
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1], heard


@pytest.mark.parametrize("ciphers", ["aNULL:@SECLEVEL=0", "ALL:aNULL:@SECLEVEL=0"])
@pytest.mark.parametrize("who", ["loop", "thread"])
async def test_no_choice_of_ciphers_makes_certificates_needless(nameless, ciphers, who):
    port, heard = nameless
    url = f"rediss://:canary@127.0.0.1:{port}?ssl_ciphers={ciphers}"
    settings = ConnectionSettings(url=url, connect_timeout_ms=2_000, command_timeout_ms=2_000)

    dialled = (
        open_connection(settings)
        if who == "loop"
        else asyncio.to_thread(BlockingConnection(settings).call, "PING")
    )
    with pytest.raises(ServerUnreachable):
        await dialled

    assert b"".join(heard) == b""
