"""Listens for scrapers and probes, and says why where it cannot."""

from __future__ import annotations

import asyncio
import errno
import os
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from chasquimq.errors import StoreError

if TYPE_CHECKING:
    from chasquimq.telemetry.http import MetricsServer

LOOPBACK = "127.0.0.1"
# These are about the port; whatever else goes wrong is about the address.
_PORT_ERRORS = (errno.EADDRINUSE, errno.EACCES)


class HostType(click.ParamType[str]):
    """An address or a name of this machine."""

    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        # Sockets take an empty one for every interface, and a variable is soon left empty.
        if not value.strip():
            self.fail(f"must be an address or a name of this machine, got {value!r}", param, ctx)
        return value


HOST = HostType()


class Endpoint(NamedTuple):
    """An address and a port; `prefix` is how the options that gave them begin."""

    host: str
    port: int
    prefix: str = "--"

    @property
    def shown_host(self) -> str:
        """The host as it stands in a URL."""
        return f"[{self.host}]" if ":" in self.host else self.host

    def of_process(self, number: int) -> Endpoint:
        """Where the process of this number listens: on the next ports, or on any free one."""
        return self._replace(port=self.port + number if self.port else 0)

    async def start(self, server: MetricsServer) -> None:
        """Let a server that was made for this place listen.

        Raises:
            StoreError: nobody can listen there.
        """
        try:
            await server.start()
        except (OSError, UnicodeError) as error:
            raise self._refusal(error) from error

    async def check_host(self) -> None:
        """Listen on the host for a moment.

        Raises:
            StoreError: the host is none of this machine's.
        """
        try:
            server = await asyncio.start_server(_hang_up, self.host, 0)
        except (OSError, UnicodeError) as error:
            raise self._refusal(error) from error
        server.close()
        await server.wait_closed()

    def _refusal(self, error: OSError | UnicodeError) -> StoreError:
        why = _reason(error)
        if isinstance(error, OSError) and error.errno in _PORT_ERRORS:
            return StoreError(f"{self.prefix}port {self.port} must be free to listen on: {why}")
        return StoreError(
            f"{self.prefix}host {self.host} must be an address or a name of this machine: {why}; "
            "0.0.0.0 is every interface"
        )


def _reason(error: OSError | UnicodeError) -> str:
    if isinstance(error, UnicodeError):
        return "nothing can have this name"
    # Event loops put the address in, which is said already. Resolvers count below zero.
    number = error.errno or 0
    return os.strerror(number) if number > 0 else error.strerror or str(error)


def _hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()
