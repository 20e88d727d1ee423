"""Dials once, and says in our words what the client library says in its own."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from chasquimq.errors import ServerRefused, ServerUnreachable, StoreError
from chasquimq.model.dialing import dial_delay_ms
from chasquimq.store.address import new_async_connection, normal_url, redact
from chasquimq.store.connection import Connection
from chasquimq.store.server_errors import about, error_from_reply, is_login_refused

if TYPE_CHECKING:
    from chasquimq.settings import ConnectionSettings


async def open_connection(settings: ConnectionSettings, *, name: str = "") -> Connection:
    """Dial once; raises ServerUnreachable or the server's own refusal."""
    owner = new_async_connection(settings, name=name)
    try:
        with client_errors_as_ours(settings):
            async with asyncio.timeout(settings.connect_timeout_ms / 1000):
                await owner.connect()
    except BaseException:
        # Half a handshake is of no use to anyone.
        await owner.disconnect(nowait=True)
        raise
    return Connection(owner, settings.command_timeout_ms)


class LoginPace:
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
    from redis.exceptions import AuthenticationError, NoPermissionError, ResponseError
    from redis.exceptions import RedisError as ClientError

    address = redact(normal_url(settings.url, tls=settings.tls))
    try:
        yield
    except AuthenticationError as error:
        raise _refused(address, error) from error
    except NoPermissionError as error:
        # The library takes the code off its messages.
        raise error_from_reply(f"NOPERM {error}") from error
    except ResponseError as error:
        raise error_from_reply(str(error)) from error
    except (ClientError, OSError, TimeoutError) as error:
        # Over a unix socket the library wraps the refusal in a broken connection.
        refusal = error.__cause__ or error.__context__
        if isinstance(refusal, StoreError):
            # It is ours already: what the credential provider came to.
            raise refusal from refusal.__cause__
        if isinstance(refusal, AuthenticationError):
            raise _refused(address, refusal) from error
        if isinstance(refusal, NoPermissionError):
            raise error_from_reply(f"NOPERM {refusal}") from error
        raise ServerUnreachable(
            f"a server must answer at {address}, found none ({_cause(error)}); "
            "start one with `chasqui server start`, or correct the URL"
        ) from error


def _refused(address: str, error: Exception) -> ServerRefused:
    return ServerRefused(
        f"the server at {address} must accept the credentials, it says: {str(error).rstrip('.')}; "
        "correct user and password in the URL or the credential provider",
        code="WRONGPASS",
    )


def _cause(error: BaseException) -> str:
    silence = "no answer in time" if isinstance(error, TimeoutError) else type(error).__name__
    text = str(error).strip() or silence
    return text.rstrip(".").splitlines()[0]
