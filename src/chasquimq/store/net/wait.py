"""Waits for a server that is not there yet: dials as after an outage, until it answers."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from chasquimq.errors import ConnectionLost, ServerUnreachable, StoreError
from chasquimq.model.backoff import dial_delay_ms
from chasquimq.model.log import get_logger
from chasquimq.store.net.errors import Action, action_for
from chasquimq.store.net.reconnect import ReconnectingConnection
from chasquimq.store.net.route import Route

if TYPE_CHECKING:
    from chasquimq.settings import ConnectionSettings

logger = get_logger(__name__)


async def wait_for_server(
    settings: ConnectionSettings, patience_ms: float, stopped: Awaitable[object]
) -> bool:
    """Wait until the server answers; False: what is `stopped` came first.

    A server that is out of reach, loads its data or does not lead yet is waited for. One that
    refuses the credentials is not: it would refuse them for ever.

    Raises:
        ServerUnreachable: the server did not answer in time.
        ServerRefused: the server does not take the user or the password.
    """
    waiting = asyncio.ensure_future(_ServerWait(settings, patience_ms).run())
    stopping = asyncio.ensure_future(stopped)
    try:
        await asyncio.wait({waiting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            return False
        waiting.result()
        return True
    finally:
        waiting.cancel()
        stopping.cancel()
        await asyncio.gather(waiting, stopping, return_exceptions=True)


class _ServerWait:
    def __init__(self, settings: ConnectionSettings, patience_ms: float) -> None:
        self._settings = settings
        self._route = Route(settings)
        self._patience_ms = patience_ms
        self._failures = 0
        self._last: StoreError | None = None

    async def run(self) -> None:
        try:
            async with asyncio.timeout(_seconds(self._patience_ms)):
                while not await self._is_there():
                    pause_ms = dial_delay_ms(self._failures, random.uniform)
                    await asyncio.sleep(pause_ms / 1000)
        except TimeoutError:
            raise self._too_late() from self._last
        if self._failures:
            logger.info("the server at %s is there", self._route)

    def _too_late(self) -> ServerUnreachable:
        waited_s = self._patience_ms / 1000
        if self._last is not None:
            return ServerUnreachable(f"{self._last}; gave up after {waited_s:g} s")
        return ServerUnreachable(
            f"a server must answer at {self._route} within {waited_s:g} s and did not; "
            "start it, correct the URL, or wait for longer"
        )

    async def _is_there(self) -> bool:
        link = ReconnectingConnection(self._settings, name="chasqui-waiting")
        try:
            await link.connection()
            await link.call("PING")
        except StoreError as error:
            return self._is_answer(error)
        finally:
            await link.close()
        return True

    def _is_answer(self, error: StoreError) -> bool:
        """False: it may be there later. A user that may not even ask has had an answer."""
        if not _may_pass(error):
            if getattr(error, "code", "") == "NOPERM":
                return True
            raise error
        if not self._failures:
            logger.warning(
                "the server at %s is not there, waiting for it: %s",
                self._route, error, extra={"error": str(error)},
            )  # fmt: skip
        self._failures, self._last = self._failures + 1, error
        return False


def _may_pass(error: StoreError) -> bool:
    return isinstance(error, ConnectionLost) or action_for(error) is not Action.RAISE


def _seconds(patience_ms: float) -> float | None:
    return None if math.isinf(patience_ms) else patience_ms / 1000
