"""Turns a URL and its settings into the client library's connection, opened and authenticated."""

from __future__ import annotations

import ssl
import warnings
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit, urlunsplit

from chasquimq.errors import SettingsError

if TYPE_CHECKING:
    from redis.asyncio.connection import AbstractConnection as AsyncConnection

    from chasquimq.settings import ConnectionSettings

_SCHEMES = ("redis", "rediss", "unix")
_URL_RULE = "redis://, rediss:// or unix:// followed by an address, or a bare host name"


def normal_url(url: str, *, tls: bool = False) -> str:
    """The URL with a scheme; `tls` turns redis:// into rediss://."""
    if not isinstance(url, str) or not url.strip():  # pyright: ignore[reportUnnecessaryIsInstance]
        raise SettingsError("redis_url", url, _URL_RULE)
    url = url.strip()
    if "://" not in url:
        url = f"redis://{url}"
    _check(url)
    if tls and url.startswith("redis://"):
        return "rediss" + url[len("redis") :]
    return url


def redact(url: str) -> str:
    """The URL without its password, safe to print."""
    try:
        parts = urlsplit(url if "://" in url else f"redis://{url}")
    except ValueError:
        return "<unreadable url>"
    if "@" not in parts.netloc:
        return urlunsplit(parts._replace(query=""))
    user = parts.netloc.rpartition("@")[0].partition(":")[0]
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{user}:***@{host}", query=""))


def new_async_connection(settings: ConnectionSettings, *, name: str = "") -> AsyncConnection:
    """A connection of the client library, not opened yet."""
    from redis.asyncio.connection import ConnectionPool

    make_pool = cast("Any", ConnectionPool).from_url
    return make_pool(_url(settings), **_options(settings, name)).make_connection()


def new_blocking_connection(settings: ConnectionSettings, *, name: str = "") -> Any:
    """The same for a thread that waits, with a read timeout of one command."""
    from redis.connection import ConnectionPool

    options = _options(settings, name) | {"socket_timeout": settings.command_timeout_ms / 1000}
    make_pool = cast("Any", ConnectionPool).from_url
    return make_pool(_url(settings), **options).make_connection()


def _url(settings: ConnectionSettings) -> str:
    return normal_url(settings.url, tls=settings.tls)


def _options(settings: ConnectionSettings, name: str) -> dict[str, Any]:
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    options: dict[str, Any] = {
        "protocol": 2,
        "socket_connect_timeout": settings.connect_timeout_ms / 1000,
        "client_name": name or None,
        "retry": Retry(NoBackoff(), 0),
    }
    if not _url(settings).startswith("unix"):
        options |= {"socket_keepalive": True, "socket_keepalive_options": _keepalive()}
    if settings.credential_provider is not None:
        options["credential_provider"] = _Provider(settings)
    return options | _tls_options(settings)


def _keepalive() -> dict[int, int]:
    import socket

    names = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 3, "TCP_KEEPCNT": 3}
    return {getattr(socket, key): value for key, value in names.items() if hasattr(socket, key)}


def _tls_options(settings: ConnectionSettings) -> dict[str, Any]:
    if not _url(settings).startswith("rediss"):
        return {}
    if settings.insecure_tls:
        warnings.warn("insecure_tls: the server's certificate is not checked", stacklevel=2)
        return {"ssl_cert_reqs": ssl.CERT_NONE, "ssl_check_hostname": False}
    return {"ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_check_hostname": True}


def _check(url: str) -> None:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise SettingsError("redis_url", redact(url), _URL_RULE, hint=str(error)) from None
    if parts.scheme not in _SCHEMES:
        raise SettingsError("redis_url", redact(url), _URL_RULE)
    if parts.scheme == "unix" and not parts.path:
        raise SettingsError("redis_url", redact(url), "unix:// followed by an absolute path")
    if parts.scheme != "unix" and (not parts.hostname or port == 0):
        raise SettingsError("redis_url", redact(url), _URL_RULE)
    if parts.scheme != "unix" and parts.path.strip("/") and not parts.path.strip("/").isdigit():
        raise SettingsError("redis_url", redact(url), "followed by /<database number> or nothing")


class _Provider:
    """The client library's credential port over a user's `async (address) -> (user, password)`."""

    def __init__(self, settings: ConnectionSettings) -> None:
        assert settings.credential_provider is not None
        self._ask = settings.credential_provider
        parts = urlsplit(_url(settings))
        self._address = f"{parts.hostname}:{parts.port or 6379}" if parts.hostname else parts.path

    async def get_credentials_async(self) -> tuple[str, ...]:
        user, password = await self._ask(self._address)
        return tuple(part for part in (user, password) if part is not None)

    def get_credentials(self) -> tuple[str, ...]:
        import asyncio

        return asyncio.run(self.get_credentials_async())
