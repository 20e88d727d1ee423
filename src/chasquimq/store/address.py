"""Turns a URL and its settings into the client library's connection, opened and authenticated."""

from __future__ import annotations

import re
import ssl
import warnings
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import SplitResult, parse_qsl, urlsplit

from chasquimq.errors import CredentialsRefused, ServerUnreachable, SettingsError
from chasquimq.settings import ConnectionSettings, CredentialProvider, given, true_or_false
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
# Other spellings of a scheme; Valkey's own, and those of clusters in ChasquiMQ (Rust).
_SPELLINGS = {
    f"{head}{tail}": f"{meant}{tail.replace('-', '+')}"
    for head, meant in {
        "redis": "redis",
        "rediss": "rediss",
        "valkey": "redis",
        "valkeys": "rediss",
    }.items()
    for tail in ("", "+sentinel", "+cluster", "-cluster")
}
_URL_RULE = (
    "redis://, rediss://, valkey://, valkeys:// or unix:// followed by an address, a bare host "
    "name, or redis+sentinel:// or redis+cluster:// followed by several"
)
_ONE_RULE = "the URL of one server: redis://, rediss:// or unix://"
_PORT_RULE = "a URL whose port is a number from 1 to 65535"
_URL_HINT = "write special characters of user and password as %XX"
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


def normal_url(url: str, *, tls: bool = False) -> str:
    """The URL in its one spelling, with a scheme in small letters.

    `tls` turns redis:// into rediss://, and redis+… into rediss+….
    """
    true_or_false("tls", tls)
    if not isinstance(url, str):  # pyright: ignore[reportUnnecessaryIsInstance]  callers lie
        raise SettingsError("redis_url", type(url), _URL_RULE)
    if not url.strip():
        raise SettingsError("redis_url", url, _URL_RULE)
    url = _with_scheme(url.strip())
    if not _is_text(url):
        raise SettingsError("redis_url", redact(url), "text that UTF-8 can carry", hint=_URL_HINT)
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
    command_timeout_ms: int | None = None,
    queue: str = "",
) -> ConnectionSettings:
    """What users say about their server, checked."""
    settings = given(
        ConnectionSettings,
        url=normal_url(url, tls=tls),
        insecure_tls=insecure_tls,
        credential_provider=credential_provider,
        command_timeout_ms=command_timeout_ms,
        queue=queue,
    )
    check_tls(settings)
    _check_tls_files(settings)
    return settings


def check_tls(settings: ConnectionSettings) -> None:
    """Refuse options in the URL that weaken TLS without `insecure_tls`, or that need TLS."""
    url = _url(settings)
    for name, value in _url_options(url):
        if not url.startswith("rediss") and name.startswith("ssl_"):
            rule = f"rediss://… where it says {name}, or come with tls=True"
            raise SettingsError("redis_url", redact(url), rule)
        if name in _VALUES:
            _check_value(name, value.strip().lower(), settings)


def _check_value(name: str, value: str, settings: ConnectionSettings) -> None:
    found = redact(_url(settings))
    if value not in (*_SAFE[name], *_WEAKENING[name]):
        rule = f"a URL whose {name} is {_VALUES[name]}"
        raise SettingsError("redis_url", found, rule, hint=f"it says {value[:_VALUE_CHARS]!r}")
    if not settings.insecure_tls and value in _WEAKENING[name]:
        raise SettingsError("redis_url", found, f"a URL without {name}", hint=_WEAKENING_HINT)


def _check_tls_files(settings: ConnectionSettings) -> None:
    """Refuse files that cannot be used, once: while a worker runs they may be away for a moment."""
    url = _url(settings)
    names = dict(_url_options(url))
    if names.get("ssl_keyfile") and not names.get("ssl_certfile"):
        raise SettingsError("redis_url", redact(url), "a URL with ssl_certfile beside ssl_keyfile")
    fault = tls_file_fault(settings)
    if fault is not None:
        option, reason = fault
        rule = f"a URL whose {option} names a file of certificates or keys that can be read"
        raise SettingsError("redis_url", redact(url), rule, hint=reason)


def tls_file_fault(settings: ConnectionSettings) -> tuple[str, str] | None:
    """The option of the URL whose file cannot be used, and why; None where there is none."""
    url = _url(settings)
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
    from redis.exceptions import DataError

    url = _url(settings)
    if parse_topology(url) is not None:
        raise SettingsError("redis_url", redact(url), _ONE_RULE)
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
        raise SettingsError("redis_url", redact(url), rule) from None
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        rule = "a URL whose options the client library knows"
        raise SettingsError("redis_url", redact(url), rule, hint=str(error)) from None


def _refuse_our_options(url: str) -> None:
    for name, _ in parse_qsl(url.partition("?")[2], keep_blank_values=True):
        if name in _OURS:
            raise SettingsError("redis_url", redact(url), f"a URL without {name}")


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
    return {"ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_check_hostname": True}


def _refuse_null_ciphers(options: dict[str, Any], settings: ConnectionSettings) -> None:
    if options.get("ssl_ciphers") and not settings.insecure_tls:
        options["ssl_ciphers"] += _NO_NULL_CIPHERS


def _with_scheme(url: str) -> str:
    """Everything below decides by the scheme, so its spelling is settled here, once."""
    if "://" not in url:
        _refuse_lost_slashes(url)
        return f"redis://{url}"
    scheme, _, rest = url.partition("://")
    return f"{_SPELLINGS.get(scheme.lower(), scheme.lower())}://{rest}"


def _is_text(url: str) -> bool:
    # Bytes of a command line or a variable that are no text come as half a character.
    return not any("\ud800" <= char <= "\udfff" for char in url)


def _refuse_lost_slashes(url: str) -> None:
    """A scheme that asks for TLS and lost its // would be taken for a user, and heard by all."""
    scheme, colon, rest = url.partition(":")
    is_safe = colon and _SPELLINGS.get(scheme.lower(), "").startswith("rediss")
    # A host may have such a name, too.
    if is_safe and not re.match(r"\d+(?:[/?#]|$)", rest):
        raise SettingsError("redis_url", redact(url), _URL_RULE, hint=f"write {scheme}://")


def _check(url: str) -> None:
    try:
        parts = urlsplit(url)
    except ValueError:
        raise SettingsError("redis_url", redact(url), _URL_RULE, hint=_URL_HINT) from None
    # The parser leaves out tabs, line ends and what else does not show; here they count.
    if url.partition("://")[0] not in _SCHEMES:
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
        self._ask: Callable[[str], object] = settings.credential_provider
        # A provider that hangs is named before the dial as a whole is given up.
        self._timeout_s = settings.connect_timeout_ms / 1000 * _PROVIDER_SHARE
        parts = urlsplit(_url(settings))
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
    # A user may be without a password that says anything, but somebody must be named.
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
