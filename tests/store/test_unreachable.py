"""A server that cannot be used: one sentence that says why, and what to try."""

from __future__ import annotations

import pytest

from chasquimq.errors import ServerRefused, ServerUnreachable, SettingsError
from chasquimq.settings import ConnectionSettings
from chasquimq.store.net.address import normal_url
from chasquimq.store.net.connect import open_connection
from chasquimq.store.net.errors import client_errors_as_ours
from support.faultproxy import FaultProxy

STARTS = "start one with `chasqui server start`, or correct the URL"
HINTS = {
    "redis://127.0.0.1:6379": STARTS,
    "redis://localhost:1": STARTS,
    "redis://[::1]:1": STARTS,
    "unix:///nowhere/none.sock": STARTS,
    "redis://192.0.2.1:1": "start it, or correct the URL",
    "rediss://127.0.0.1:1": "start it, or correct the URL",
}


@pytest.mark.parametrize("url", HINTS)
def test_the_command_that_starts_a_server_is_named_only_where_it_can_help(url):
    settings = ConnectionSettings(url=url)

    with pytest.raises(ServerUnreachable) as caught, client_errors_as_ours(settings):
        raise ConnectionRefusedError(111, "Connection refused")

    assert str(caught.value).endswith(f"; {HINTS[url]}")


async def test_a_database_that_the_server_does_not_have_is_named(url):
    async with FaultProxy(url) as proxy:
        for address in (f"{proxy.url}/99", f"{url}?db=99"):
            with pytest.raises(
                ServerRefused, match=r"must have database 99, it says: .*DB index"
            ) as caught:
                await open_connection(ConnectionSettings(url=address))

            assert str(caught.value).startswith("the server at ")
            assert "`databases`" in str(caught.value)


def test_the_refusal_of_an_unknown_scheme_names_every_scheme():
    with pytest.raises(SettingsError) as caught:
        normal_url("http://host:1")

    for scheme in (
        "redis",
        "rediss",
        "valkey",
        "valkeys",
        "unix",
        "redis+sentinel",
        "redis+cluster",
    ):
        assert f"{scheme}://" in str(caught.value)


def test_the_refusal_of_weakened_tls_says_what_commands_can_do():
    from chasquimq.store.net.address import check_tls

    with pytest.raises(SettingsError) as caught:
        check_tls(ConnectionSettings(url="rediss://host?ssl_cert_reqs=none"))

    assert str(caught.value).endswith(
        "; name the file of your authority with ssl_ca_certs= in the URL; only code can connect "
        "without checking, with insecure_tls=True: commands cannot"
    )
