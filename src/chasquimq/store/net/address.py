"""Turns a URL and its settings into the client library's connection, opened and authenticated."""

from __future__ import annotations

import os
import socket
import ssl
import warnings
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qsl, urlsplit

from chasquimq.errors import CredentialsRefused, ServerUnreachable, SettingsError
from chasquimq.model.log import get_logger
from chasquimq.server.finder import Found, ServerLookup
from chasquimq.server.probe import check_peer
from chasquimq.settings import ConnectionSettings, CredentialProvider, given, true_or_false
from chasquimq.store.net.topology import URL_ARGUMENT, normal_url, parse_topology, redact

if TYPE_CHECKING:
    from redis.asyncio.connection import AbstractConnection as AsyncConnection

__all__ = [
    "check_found",
    "connection_settings",
    "dialled_url",
    "looked_up",
    "lookup_reason",
    "new_async_connection",
    "new_blocking_connection",
    "normal_url",
    "own_lookup",
    "redact",
    "resolved",
    "shown_address",
    "shown_server",
    "url_of",
]

logger = get_logger(__name__)

# One line of the log for each answer of a look-up in a process.
_logged: set[tuple[int, str, str]] = set()
_ONE_RULE = "the URL of one server: redis://, rediss:// or unix://"
_WEAKENING = {
    "ssl_cert_reqs": ("none", "optional"),
    "ssl_check_hostname": ("false", "f", "0", "no", "n"),
}
# Without these a server needs no certificate, or reads and writes in the clear.
_NO_NULL_CIPHERS = ":!aNULL:!eNULL"
# Options of the client library that no text can say, or that would change what we say to servers.
_OURS = frozenset({
    "connection_class", "credential_provider", "decode_responses", "encoding", "encoding_errors",
    "event_dispatcher", "maint_notifications_config", "parser_class", "redis_connect_func", "retry",
    "socket_keepalive_options",
})  # fmt: skip
_SAFE = {"ssl_cert_reqs": ("required",), "ssl_check_hostname": ("true", "t", "1", "yes", "y")}
_VALUES = {"ssl_cert_reqs": "required, optional or none", "ssl_check_hostname": "true or false"}
_WEAKENING_HINT = (
    "name the file of your authority with ssl_ca_certs= in the URL; only code can connect "
    "without checking, with insecure_tls=True: commands cannot"
)
_PROVIDER_SHARE = 0.8
_PARTS_SHOWN = 3
_VALUE_CHARS = 20


def connection_settings(
    url: str | None,
    *,
    tls: bool,
    insecure_tls: bool,
    credential_provider: CredentialProvider | None,
    command_timeout_ms: int | None = None,
    queue: str = "",
) -> ConnectionSettings:
    """What users say about their server, checked; None: it is looked up for the first dial."""
    true_or_false("tls", tls)
    settings = given(
        ConnectionSettings,
        url=None if url is None else normal_url(url, tls=tls),
        lookup=ServerLookup() if url is None else None,
        tls=tls if url is None else None,
        insecure_tls=insecure_tls,
        credential_provider=credential_provider,
        command_timeout_ms=command_timeout_ms,
        queue=queue,
    )
    return settings if url is None else _checked(settings)


def own_lookup(settings: ConnectionSettings) -> ConnectionSettings:
    """The same for another event loop, which looks the server up for itself where none is named."""
    return settings if settings.url is not None else replace(settings, lookup=ServerLookup())


def looked_up(settings: ConnectionSettings, found: Found) -> ConnectionSettings:
    """The settings with the server that was found for them.

    Raises:
        SettingsError: its URL is refused; the message names the variable that holds it.
    """
    assert found.url is not None, "what is dialled has a URL"
    with naming(found.variable):
        settings = _checked(replace(settings, url=normal_url(found.url, tls=settings.tls)))
    _log_once(redact(url_of(settings)), found.reason)
    return settings


def check_found(found: Found) -> None:
    """Refuse the URL of an environment variable that could never be dialled, by its name."""
    if found.url is not None:
        with naming(found.variable):
            _checked(ConnectionSettings(url=normal_url(found.url)))


def dialled_url(settings: ConnectionSettings) -> str:
    """The URL that was named, else the one that a look-up finds now.

    Raises:
        SettingsError: it is refused; the message names where it came from.
    """
    return url_of(resolved(settings))


def resolved(settings: ConnectionSettings) -> ConnectionSettings:
    """The settings with a server in any case: the named one, else the one that is found now."""
    if settings.url is not None:
        return settings
    lookup = settings.lookup or ServerLookup()
    return looked_up(replace(settings, lookup=lookup), lookup.found)


@contextmanager
def naming(variable: str) -> Generator[None]:
    """Name the variable that a refused URL came from; empty: it was an argument."""
    try:
        yield
    except SettingsError as refused:
        if not variable or refused.name != URL_ARGUMENT:
            raise
        raise refused.renamed(variable) from None


def shown_server(settings: ConnectionSettings) -> str:
    """The address without secrets, and why this server where it was looked up."""
    address, reason = shown_address(settings), lookup_reason(settings)
    return f"{address} ({reason})" if reason else address


def shown_address(settings: ConnectionSettings) -> str:
    """The address without secrets: the one that was named, else the latest that was looked up."""
    if settings.url is None and settings.lookup is not None:
        settings = replace(settings, url=settings.lookup.found.url)
    return redact(url_of(settings))


def lookup_reason(settings: ConnectionSettings) -> str:
    """Why this server, where it was looked up; empty where it was named."""
    return "" if settings.lookup is None else settings.lookup.found.reason


def check_listener(settings: ConnectionSettings, listening: Any) -> None:
    """Refuse an open socket to the project's server at which another user listens by now.

    Raises:
        PermissionError: nothing was said to that user.
    """
    if settings.lookup is None or not settings.lookup.found.is_project:
        return
    url = url_of(settings)
    if url.startswith("unix"):
        # Event loops hand out sockets of their own that cannot be asked.
        with socket.socket(fileno=os.dup(listening.fileno())) as asked:
            check_peer(asked, redact(url))


def _log_once(address: str, reason: str) -> None:
    seen = os.getpid(), address, reason
    if seen not in _logged:
        _logged.add(seen)
        logger.info("the server is %s: %s", address, reason)


def _checked(settings: ConnectionSettings) -> ConnectionSettings:
    check_tls(settings)
    _check_tls_files(settings)
    return settings


def check_tls(settings: ConnectionSettings) -> None:
    """Refuse options in the URL that weaken TLS without `insecure_tls`, or that need TLS."""
    url = url_of(settings)
    for name, value in _url_options(url):
        if not url.startswith("rediss") and name.startswith("ssl_"):
            rule = f"rediss://… where it says {name}, or come with tls=True"
            raise SettingsError(URL_ARGUMENT, redact(url), rule)
        if name in _VALUES:
            _check_value(name, value.strip().lower(), settings)


def _check_value(name: str, value: str, settings: ConnectionSettings) -> None:
    found = redact(url_of(settings))
    if value not in (*_SAFE[name], *_WEAKENING[name]):
        rule = f"a URL whose {name} is {_VALUES[name]}"
        raise SettingsError(URL_ARGUMENT, found, rule, hint=f"it says {value[:_VALUE_CHARS]!r}")
    if not settings.insecure_tls and value in _WEAKENING[name]:
        raise SettingsError(URL_ARGUMENT, found, f"a URL without {name}", hint=_WEAKENING_HINT)


def _check_tls_files(settings: ConnectionSettings) -> None:
    """Refuse files that cannot be used, once: while a worker runs they may be away for a moment."""
    url = url_of(settings)
    names = dict(_url_options(url))
    if names.get("ssl_keyfile") and not names.get("ssl_certfile"):
        raise SettingsError(URL_ARGUMENT, redact(url), "a URL with ssl_certfile beside ssl_keyfile")
    fault = tls_file_fault(settings)
    if fault is not None:
        option, reason = fault
        rule = f"a URL whose {option} names a file of certificates or keys that can be read"
        raise SettingsError(URL_ARGUMENT, redact(url), rule, hint=reason)


def tls_file_fault(settings: ConnectionSettings) -> tuple[str, str] | None:
    """The option of the URL whose file cannot be used, and why; None where there is none."""
    url = url_of(settings)
    if not url.startswith("rediss"):
        return None
    names = {name: value for name, value in _url_options(url) if value}
    for option in filter(names.get, ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")):
        try:
            _load(option, names)
        except (OSError, ValueError) as error:
            return option, f"{names[option]}: {_why(error)}"
    return None


def _why(error: OSError | ValueError) -> str:
    """Without the number of an error, which means nothing to a reader."""
    if isinstance(error, ssl.SSLError):
        # Of a key without its password it gives no reason.
        words = (error.reason or "").replace("_", " ").lower()
        return words or "it cannot be read, or not with this ssl_password"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _load(option: str, names: Mapping[str, str]) -> None:
    """Read the file as a connection will."""
    # A file that is not there is said so by name, which OpenSSL does not.
    Path(names[option]).open("rb").close()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if option == "ssl_ca_certs":
        context.load_verify_locations(names[option])
    elif option == "ssl_keyfile" or "ssl_keyfile" not in names:
        # Without a password OpenSSL would ask for one at the terminal.
        password = names.get("ssl_password", "")
        context.load_cert_chain(names["ssl_certfile"], names.get("ssl_keyfile"), password)


def _url_options(url: str) -> list[tuple[str, str]]:
    return parse_qsl(url.partition("?")[2].partition("#")[0], keep_blank_values=True)


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
    with naming("" if settings.lookup is None else settings.lookup.found.variable):
        return _made(pool_class, settings, name, **options)


def _made(pool_class: Any, settings: ConnectionSettings, name: str, **options: Any) -> Any:
    from redis.exceptions import DataError

    url = url_of(settings)
    if parse_topology(url) is not None:
        raise SettingsError(URL_ARGUMENT, redact(url), _ONE_RULE)
    check_tls(settings)
    _refuse_our_options(url)
    try:
        pool = pool_class.from_url(url, **_options(settings, name), **options)
        # In a URL these would win over what we rely on.
        pool.connection_kwargs |= {"protocol": 2, **_tls_options(settings)}
        _refuse_null_ciphers(pool.connection_kwargs, settings)
        return pool.make_connection()
    except DataError:
        rule = "a URL without user and password where there is a credential_provider"
        raise SettingsError(URL_ARGUMENT, redact(url), rule) from None
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        rule = "a URL whose options the client library knows"
        raise SettingsError(URL_ARGUMENT, redact(url), rule, hint=str(error)) from None


def _refuse_our_options(url: str) -> None:
    for name, _ in parse_qsl(url.partition("?")[2], keep_blank_values=True):
        if name in _OURS:
            raise SettingsError(URL_ARGUMENT, redact(url), f"a URL without {name}")


def url_of(settings: ConnectionSettings) -> str:
    """The URL of a server that was named or looked up, in its one form."""
    assert settings.url is not None, "a server is looked up before it is dialled"
    return normal_url(settings.url, tls=settings.tls)


def _options(settings: ConnectionSettings, name: str) -> dict[str, Any]:
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    options: dict[str, Any] = {
        "socket_connect_timeout": settings.connect_timeout_ms / 1000,
        "client_name": name or None,
        "retry": Retry(NoBackoff(), 0),
    }
    if not url_of(settings).startswith("unix"):
        options |= {"socket_keepalive": True, "socket_keepalive_options": _keepalive()}
    if settings.credential_provider is not None:
        options["credential_provider"] = _Provider(settings)
    return options


def _keepalive() -> dict[int, int]:
    names = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 3, "TCP_KEEPCNT": 3}
    return {getattr(socket, key): value for key, value in names.items() if hasattr(socket, key)}


def _tls_options(settings: ConnectionSettings) -> dict[str, Any]:
    if not url_of(settings).startswith("rediss"):
        return {}
    if settings.insecure_tls:
        warnings.warn("insecure_tls: the server's certificate is not checked", stacklevel=2)
        return {"ssl_cert_reqs": ssl.CERT_NONE, "ssl_check_hostname": False}
    return {"ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_check_hostname": True}


def _refuse_null_ciphers(options: dict[str, Any], settings: ConnectionSettings) -> None:
    if options.get("ssl_ciphers") and not settings.insecure_tls:
        options["ssl_ciphers"] += _NO_NULL_CIPHERS


class _Provider:
    """The client library's credential port over a user's `async (address) -> (user, password)`."""

    def __init__(self, settings: ConnectionSettings) -> None:
        assert settings.credential_provider is not None
        self._ask: Callable[[str], object] = settings.credential_provider
        # A provider that hangs is named before the dial as a whole is given up.
        self._timeout_s = settings.connect_timeout_ms / 1000 * _PROVIDER_SHARE
        parts = urlsplit(url_of(settings))
        self._address = f"{parts.hostname}:{parts.port or 6379}" if parts.hostname else parts.path

    async def get_credentials_async(self) -> tuple[str | bytes, ...]:
        import asyncio

        try:
            answer = await self._answer()
        except (Exception, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task and task.cancelling():
                raise
            # The provider is a user's own code, and may raise anything; its words may hold secrets.
            raise ServerUnreachable(
                f"the credential provider must give user and password for {self._address}, it "
                f"failed with {type(error).__name__}; the next dial asks it again"
            ) from error
        return _checked_credentials(answer)

    def get_credentials(self) -> tuple[str | bytes, ...]:
        import asyncio

        return asyncio.run(self.get_credentials_async())

    async def _answer(self) -> object:
        import asyncio

        answer = self._ask(self._address)
        if not isinstance(answer, Awaitable):
            return _NotAsync()
        async with asyncio.timeout(self._timeout_s):
            return await cast("Awaitable[object]", answer)


class _NotAsync:
    """Stands for the answer of a function that is not async."""


def _checked_credentials(answer: object) -> tuple[str | bytes, ...]:
    """User and password, or the password alone, or nothing for a server that is open to all."""
    if isinstance(answer, _NotAsync):
        raise CredentialsRefused("what cannot be awaited")
    if not isinstance(answer, tuple | list):
        raise CredentialsRefused("None" if answer is None else type(answer).__name__)
    kind, parts = type(cast("object", answer)).__name__, list(cast("Sequence[object]", answer))
    if not _is_login(parts):
        raise CredentialsRefused(_shape(kind, parts))
    try:
        return tuple(_bytes_of(part) for part in parts if part is not None)
    except UnicodeEncodeError:
        raise CredentialsRefused("text that UTF-8 cannot carry") from None


def _bytes_of(part: object) -> bytes:
    # Not as its own class would have it: that is a user's code, too.
    return str.encode(part) if isinstance(part, str) else cast("bytes", part)


def _is_login(parts: list[object]) -> bool:
    if len(parts) not in (1, 2) or not all(isinstance(one, str | bytes | None) for one in parts):
        return False
    if parts == [None, None]:
        return True
    # A user may be without a password that says anything, but there must be a name.
    return parts[-1] is not None and parts[0] not in ("", b"") and any(parts)


def _shape(kind: str, parts: list[object]) -> str:
    """What it is made of, without what it says."""
    if not parts:
        return f"an empty {kind}"
    more = " and more" if len(parts) > _PARTS_SHOWN else ""
    return f"a {kind} of {', '.join(map(_part_shape, parts[:_PARTS_SHOWN]))}{more}"


def _part_shape(part: object) -> str:
    if part is None:
        return "None"
    return f"an empty {type(part).__name__}" if part in ("", b"") else type(part).__name__
