"""Which server a worker dials: the one it names, else the one it is told."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

from chasquimq.errors import SettingsError
from chasquimq.settings import ConnectionSettings, UnnamedUrl
from chasquimq.store.redact import redact


class ServerOfWorker:
    """`connect` makes settings of a URL, with all else that the worker says of its server."""

    def __init__(self, redis_url: str, connect: Callable[[str], ConnectionSettings]) -> None:
        self._connect = connect
        self.is_named = not isinstance(redis_url, UnnamedUrl)
        self.connection = connect(redis_url)

    def take(self, redis_url: str) -> None:
        """Dial this one.

        Raises:
            SettingsError: the worker names another.
        """
        told = self._connect(redis_url)
        if self.is_named and _compared(told) != _compared(self.connection):
            rule = f"{redact(self.connection.url)}, which this Worker names"
            hint = "leave it out here, or where the Worker is made"
            raise SettingsError("redis_url", redact(told.url), rule, hint=hint)
        if not self.is_named:
            self.connection = told


def _compared(connection: ConnectionSettings) -> str:
    if connection.credential_provider is None:
        return connection.url
    # Who is asked for user and password need not have them in the URL.
    parts = urlsplit(connection.url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
