"""Turns a URL and its settings into the client library's connection, opened and authenticated."""

from __future__ import annotations

import ssl
import warnings
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, parse_qs, urlsplit

from chasquimq.errors import ServerUnreachable, SettingsError
from chasquimq.settings import ConnectionSettings, CredentialProvider
from chasquimq.store.redact import redact
from chasquimq.store.topology import parse_topology

if TYPE_CHECKING:
    from redis.asyncio.connection import AbstractConnection as AsyncConnection

__all__ = [
    "connection_settings",
    "new_async_connection",
    "new_blocking_connection",
    "normal_url",
    "redact",
]

_SCHEMES = ("redis", "rediss", "unix")
_URL_RULE = (
    "redis://, rediss:// or unix:// followed by an address, a bare host name, "
    "or redis+sentinel:// or redis+cluster:// followed by several"
)
_ONE_RULE = "the URL of one server: redis://, rediss:// or unix://"
_PORT_RULE = "a URL whose port is a number from 1 to 65535"
_URL_HINT = "write special characters of user and password as %XX"
_RELAXED_TLS = {"ssl_cert_reqs": ("none", "optional"), "ssl_check_hostname": ("false", "0", "no")}


def normal_url(url: str, *, tls: bool = False) -> str:
    """The URL with a scheme; `tls` turns redis:// into rediss://, and redis+… into rediss+…."""
    if not isinstance(url, str):  # pyright: ignore[reportUnnecessaryIsInstance]  callers lie
        raise SettingsError("redis_url", type(url), _URL_RULE)
    if not url.strip():
        raise SettingsError("redis_url", url, _URL_RULE)
    url = url.strip()
    if "://" not in url:
        url = f"redis://{url}"
    if parse_topology(url) is None:
        _check(url)
    if tls and url.startswith(("redis://", "redis+")):
        return "rediss" + url[len("redis") :]
    return url


def connection_settings(
    url: str,
    *,
    tls: bool,
    insecure_tls: bool,
    credential_provider: CredentialProvider | None,
    queue: str = "",
) -> ConnectionSettings:
    """What users say about their server, checked."""
    return ConnectionSettings(
        url=normal_url(url, tls=tls),
        insecure_tls=insecure_tls,
        credential_provider=credential_provider,
        queue=queue,
    )


def new_async_connection(settings: ConnectionSettings, *, name: str = "") -> AsyncConnection:
    """A connection of the client library, not opened yet."""
    from redis.asyncio.connection import ConnectionPool

    return _make(ConnectionPool, settings, name)


def new_blocking_connection(settings: ConnectionSettings, *, name: str = "") -> Any:
    """The same for a thread that waits, with a read timeout of one command."""
    from redis.connection import ConnectionPool

    timeout_s = settings.command_timeout_ms / 1000
    return _make(ConnectionPool, settings, name, socket_timeout=timeout_s)


def _make(pool_class: Any, settings: ConnectionSettings, name: str, **options: Any) -> Any:
    url = _url(settings)
    if parse_topology(url) is not None:
        raise SettingsError("redis_url", redact(url), _ONE_RULE)
    try:
        pool = pool_class.from_url(url, **_options(settings, name), **options)
        # In a URL these would win over what we rely on.
        pool.connection_kwargs |= {"protocol": 2, **_tls_options(settings)}
        return pool.make_connection()
    except (TypeError, ValueError) as error:
        rule = "a URL whose options the client library knows"
        raise SettingsError("redis_url", redact(url), rule, hint=str(error)) from None


def _url(settings: ConnectionSettings) -> str:
    return normal_url(settings.url, tls=settings.tls)


def _options(settings: ConnectionSettings, name: str) -> dict[str, Any]:
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    options: dict[str, Any] = {
        "socket_connect_timeout": settings.connect_timeout_ms / 1000,
        "client_name": name or None,
        "retry": Retry(NoBackoff(), 0),
    }
    if not _url(settings).startswith("unix"):
        options |= {"socket_keepalive": True, "socket_keepalive_options": _keepalive()}
    if settings.credential_provider is not None:
        options["credential_provider"] = _Provider(settings)
    return options


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
    _refuse_relaxed_tls(_url(settings))
    return {"ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_check_hostname": True}


def _refuse_relaxed_tls(url: str) -> None:
    given = parse_qs(urlsplit(url).query)
    for name, refused in _RELAXED_TLS.items():
        if given.get(name, [""])[0].lower() in refused:
            hint = "pass insecure_tls=True to connect without checking"
            raise SettingsError("redis_url", redact(url), f"a URL without {name}", hint=hint)


def _check(url: str) -> None:
    try:
        parts = urlsplit(url)
    except ValueError:
        raise SettingsError("redis_url", redact(url), _URL_RULE, hint=_URL_HINT) from None
    if parts.scheme not in _SCHEMES:
        raise SettingsError("redis_url", redact(url), _URL_RULE)
    if parts.scheme == "unix" and not parts.path:
        raise SettingsError("redis_url", redact(url), "unix:// followed by an absolute path")
    if parts.scheme != "unix" and not parts.hostname:
        raise SettingsError("redis_url", redact(url), _URL_RULE)
    _check_port(url, parts)
    if parts.scheme != "unix" and parts.path.strip("/") and not parts.path.strip("/").isdigit():
        raise SettingsError("redis_url", redact(url), "followed by /<database number> or nothing")


def _check_port(url: str, parts: SplitResult) -> None:
    try:
        is_port = parts.port != 0
    except ValueError:
        is_port = False
    if not is_port:
        text = parts.netloc.rpartition(":")[2]
        # What is no number may be half a password.
        hint = "" if text.isdigit() else _URL_HINT
        raise SettingsError("redis_url", redact(url), _PORT_RULE, hint=hint)


class _Provider:
    """The client library's credential port over a user's `async (address) -> (user, password)`."""

    def __init__(self, settings: ConnectionSettings) -> None:
        assert settings.credential_provider is not None
        self._ask = settings.credential_provider
        parts = urlsplit(_url(settings))
        self._address = f"{parts.hostname}:{parts.port or 6379}" if parts.hostname else parts.path

    async def get_credentials_async(self) -> tuple[str, ...]:
        try:
            user, password = await self._ask(self._address)
        except Exception as error:
            # The provider is a user's own code, and may raise anything.
            raise ServerUnreachable(
                f"the credential provider must give user and password for {self._address}, it "
                f"failed with {type(error).__name__}; the next dial asks it again"
            ) from error
        return tuple(part for part in (user, password) if part is not None)

    def get_credentials(self) -> tuple[str, ...]:
        import asyncio

        return asyncio.run(self.get_credentials_async())
