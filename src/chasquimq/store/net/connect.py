"""Dials once, and turns the errors of the client library into ours."""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

from chasquimq.errors import ServerRefused, ServerUnreachable, StoreError
from chasquimq.model.backoff import dial_delay_ms
from chasquimq.store.net.address import (
    check_listener,
    new_async_connection,
    shown_server,
    tls_file_fault,
    url_of,
)
from chasquimq.store.net.connection import Connection, pack
from chasquimq.store.net.errors import about, error_from_reply, is_login_refused

if TYPE_CHECKING:
    from chasquimq.server.finder import Found
    from chasquimq.settings import ConnectionSettings
    from chasquimq.store.net.connection import Reply
    from chasquimq.store.net.route import Asking, FoundT, Question, Range, Route

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


async def open_connection(settings: ConnectionSettings, *, name: str = "") -> Connection:
    """Dial once; raises ServerUnreachable or the server's own refusal."""
    owner: Any = new_async_connection(settings, name=name)
    try:
        with client_errors_as_ours(settings):
            async with asyncio.timeout(settings.connect_timeout_ms / 1000):
                await owner.connect()
                check_listener(settings, owner._writer.get_extra_info("socket"))  # noqa: SLF001  as in `_take_over`
    except BaseException:
        # Half a handshake is of no use to anyone.
        await owner.disconnect(nowait=True)
        raise
    return Connection(owner, settings.command_timeout_ms)


class DialRefusals:
    """When a dial that was refused may be tried again: ever later, for callers ask ever again."""

    def __init__(self) -> None:
        self._refusals = 0
        self._not_before_s = 0.0
        self._error: StoreError | None = None

    def check(self) -> None:
        """Raise the last refusal again while it is too early for another dial."""
        if self._error is not None and time.monotonic() < self._not_before_s:
            raise about(self._error, ()) from self._error.__cause__

    def note(self, error: StoreError, *, was_open: bool = False) -> None:
        """A dial failed for good; where a connection was open before, whatever the reason is."""
        if not (was_open or is_login_refused(error)):
            self.clear()
            return
        self._error, self._refusals = error, self._refusals + 1
        pause_ms = dial_delay_ms(self._refusals, random.uniform)
        self._not_before_s = time.monotonic() + pause_ms / 1000

    def clear(self) -> None:
        self._error, self._refusals = None, 0


@contextmanager
def client_errors_as_ours(settings: ConnectionSettings) -> Generator[None]:
    """Turn whatever the client library raises into one of our errors."""
    from redis.exceptions import RedisError as ClientError

    try:
        yield
    except (ClientError, OSError, TimeoutError) as error:
        # Over a unix socket the library wraps the refusal in a broken connection.
        inner = error.__cause__ or error.__context__
        if isinstance(inner, StoreError):
            # It is ours already: what the credential provider came to.
            raise inner from inner.__cause__
        refusal = _refusal(settings, error) or _refusal(settings, inner)
        raise refusal or _unreachable(settings, error) from error


def _refusal(settings: ConnectionSettings, error: BaseException | None) -> StoreError | None:
    """What the server answered instead of a welcome; None where it did not answer."""
    from redis.exceptions import AuthenticationError, NoPermissionError, ResponseError

    if isinstance(error, AuthenticationError):
        return _refused(shown_server(settings), error)
    if isinstance(error, NoPermissionError):
        # The library takes the code off its messages.
        return error_from_reply(f"NOPERM {error}")
    if not isinstance(error, ResponseError):
        return None
    is_database = "DB index is out of range" in str(error)
    return _no_database(settings, error) if is_database else error_from_reply(str(error))


def _refused(address: str, error: Exception) -> ServerRefused:
    return ServerRefused(
        f"the server at {address} must accept the credentials, it says: {str(error).rstrip('.')}; "
        "correct user and password in the URL or the credential provider",
        code="WRONGPASS",
    )


def _no_database(settings: ConnectionSettings, error: Exception) -> ServerRefused:
    return ServerRefused(
        f"the server at {shown_server(settings)} must have database {_database(settings)}, it says: "
        f"{str(error).rstrip('.')}; choose a smaller number in the URL, or raise `databases` in the "
        "server's configuration",
        code="ERR",
    )


def _unreachable(settings: ConnectionSettings, error: BaseException) -> ServerUnreachable:
    fault = tls_file_fault(settings)
    cause = _cause(error) if fault is None else " ".join(fault)
    hint = "correct the file or its name" if fault is not None else _hint(settings, error)
    return ServerUnreachable(
        f"a server must answer at {shown_server(settings)}, found none ({cause}); {hint}"
    )


def _hint(settings: ConnectionSettings, error: BaseException) -> str:
    """What to try: it depends on what was dialled, and on what came back."""
    url = url_of(settings)
    if url.startswith("rediss"):
        return _tls_hint(error)
    is_hung_up = "closed" in str(error) or _is_caused_by(error, ConnectionResetError)
    if is_hung_up and not url.startswith("unix"):
        return "it may be stopping, or the port may speak TLS only: try rediss://"
    if settings.lookup is not None:
        return _lookup_hint(settings.lookup.found)
    is_local = url.startswith("unix") or urlsplit(url).hostname in _LOOPBACK
    start = "start one with `chasqui server start`" if is_local else "start it"
    return f"{start}, or correct the URL"


def _lookup_hint(found: Found) -> str:
    if found.variable:
        return f"start it, or correct {found.variable}"
    if found.is_project:
        return "see `chasqui server status`, or set CHASQUI_REDIS_URL"
    return "set CHASQUI_REDIS_URL or pass redis_url, or start one here with `chasqui server start`"


def _tls_hint(error: BaseException) -> str:
    if _is_caused_by(error, ssl.SSLCertVerificationError):
        return (
            "name the file of its authority with ssl_ca_certs= in the URL, or correct the host name"
        )
    if _is_caused_by(error, ssl.SSLError, TimeoutError, ConnectionResetError):
        return "the port may not speak TLS: try redis://, or correct the URL"
    return "start it, or correct the URL"


def _is_caused_by(error: BaseException | None, *kinds: type[BaseException]) -> bool:
    """Whether it is one of these, or the library wrapped one of them."""
    while error is not None:
        if isinstance(error, kinds):
            return True
        error = error.__cause__ or error.__context__
    return False


def _database(settings: ConnectionSettings) -> str:
    parts = urlsplit(url_of(settings))
    named = dict(parse_qsl(parts.query)).get("db")
    return named or parts.path.strip("/")


def _cause(error: BaseException) -> str:
    silence = "no answer in time" if isinstance(error, TimeoutError) else type(error).__name__
    text = str(error).strip() or silence
    return text.rstrip(".").splitlines()[0]


_NAME = "chasqui-route"


async def dial(route: Route, *, name: str = "") -> Connection:
    """Dial once; raises ServerUnreachable or the server's own refusal."""
    connection = await open_connection(await _answered(route.search()), name=name)
    route.opened()
    if not route.needs_role:
        return connection
    try:
        (role,) = await connection.send(pack(("ROLE",)))
        route.check_role(role)
    except BaseException:
        connection.abort("a server that does not lead is of no use")
        raise
    return connection


async def find_masters(route: Route) -> list[tuple[ConnectionSettings, list[Range]]]:
    """Every server that holds a part of the data, with its slots where it is one of a cluster."""
    return await _answered(route.masters())


async def _answered(asking: Asking[FoundT]) -> FoundT:
    answer: Reply | StoreError = None
    while True:
        try:
            question = asking.send(answer)
        except StopIteration as end:
            return end.value
        answer = await _ask(question)


async def _ask(question: Question) -> Reply | StoreError:
    try:
        connection = await open_connection(question.settings, name=_NAME)
    except StoreError as error:
        return error
    try:
        return (await connection.send(pack(question.command)))[0]
    except StoreError as error:
        return error
    finally:
        await connection.close()
