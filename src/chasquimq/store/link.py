"""A connection that comes back: dials one at a time, paces itself, prepares each new connection."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from chasquimq.errors import ConnectionLost, ServerUnreachable, StoreError
from chasquimq.model.dialing import dial_delay_ms
from chasquimq.model.log import get_logger
from chasquimq.model.pace import Pace
from chasquimq.store.connection import Connection, Part, Reply
from chasquimq.store.dialling import dial
from chasquimq.store.opening import DialRefusals
from chasquimq.store.route import Route
from chasquimq.store.server_errors import (
    Action,
    action_for,
    is_login_refused,
    is_worth_asking_again,
)

if TYPE_CHECKING:
    from chasquimq.settings import ConnectionSettings

logger = get_logger(__name__)

Prepare = Callable[[Connection], Awaitable[None]]
_WAIT_MS = 50
# A connection that breaks sooner than this counts as a failed dial.
_YOUNG_S = 1.0
_ASK_S_MAX = 10.0
_HANG_UP_S = 1.0
_HANG_UP_ROUNDS = 3
# All connections of a process that one address refuses share one line of the log.
_refusals_logged: defaultdict[str, Pace] = defaultdict(Pace)
# Since when an address could not be dialled; the first connection that is back reports the end.
_away_since_s: dict[str, float] = {}


class Link:
    """The way to the server for one role.

    A login that is refused is an error for callers, who hear it again until the next dial is due;
    so is, on a link that was open before, whatever makes a new connection of no use.
    With `waits_for_login` an open link whose password changed dials on, as in an outage.
    """

    def __init__(
        self,
        settings: ConnectionSettings,
        *,
        name: str = "",
        prepare: Prepare | None = None,
        waits_for_login: bool = False,
    ) -> None:
        self._route = Route(settings)
        self._name = name
        self._prepare = prepare
        self._waits_for_login = waits_for_login
        self._login = DialRefusals()
        self._connection: Connection | None = None
        self._dialling: asyncio.Task[Connection] | None = None
        self._failures = 0
        self._opened_s = float("-inf")
        self._was_open = False
        self._is_closed = False
        self.dial_count = 0

    @property
    def is_up(self) -> bool:
        return self._connection is not None and self._connection.is_open

    @property
    def was_open(self) -> bool:
        """Whether it ever was, and so dials again by itself."""
        return self._was_open

    @property
    def current(self) -> Connection | None:
        """The open connection, if there is one right now."""
        if self._connection is None or not self._connection.is_open:
            return None
        self._connection.check_caller()
        return self._connection

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits for an answer or for the connection."""
        is_asked = self._connection is not None and self._connection.has_unanswered
        return self._dialling is None and not is_asked

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    async def connection(self, *, within_s: float | None = None) -> Connection:
        """The open connection, or a new one.

        The first dial of a link is tried once. Later ones go on until `within_s` has passed
        (None: for ever).
        """
        current = self.current
        if current is not None:
            return current
        if self._is_closed:
            raise _closed()
        if self._dialling is None:
            self._login.check()
            self._dialling = asyncio.create_task(self._dial(), name=f"chasqui-dial-{self._name}")
            self._dialling.add_done_callback(self._dialled)
        try:
            async with asyncio.timeout(within_s):
                return await self._shared(self._dialling)
        except TimeoutError:
            raise ConnectionLost(
                f"the server must answer within {within_s:g} s and did not; is it running?",
                outcome="not_done",
            ) from None

    async def call(self, *parts: Part, block_ms: int = 0) -> Reply:
        """One command on the open connection; errors of the server are raised as ours."""
        connection = await self.connection()
        try:
            return await connection.call(*parts, block_ms=block_ms)
        except StoreError as error:
            self.heed(error)
            raise

    async def ask(self, request: bytes, reply_count: int = 1) -> list[Reply]:
        """Questions that change nothing: asked again when the connection breaks under them.

        A server that cannot answer now, or is the wrong one, is asked again too, for as long.
        """
        until_s = asyncio.get_running_loop().time() + _ASK_S_MAX
        while True:
            left_s = until_s - asyncio.get_running_loop().time()
            connection = await self.connection(within_s=max(0.05, left_s))
            try:
                replies = await connection.send(request, reply_count)
            except ConnectionLost:
                if left_s <= 0:
                    raise
                continue
            trouble = next(filter(is_worth_asking_again, replies), None)
            if trouble is None or left_s <= 0:
                return replies
            self.heed(trouble)
            await pause(trouble)

    def heed(self, error: StoreError) -> None:
        """Drop a connection that the error says is of no more use."""
        if self._connection is None or isinstance(error, ConnectionLost):
            return
        if action_for(error) in (Action.REDIAL, Action.REDISCOVER):
            self._route.heed(error)
            self._connection.abort(str(error))

    async def hang_up(self) -> None:
        """Close for now: the next question dials as the first one did."""
        connection, self._connection = self._connection, None
        self._was_open, self._opened_s = False, float("-inf")
        if connection is not None:
            await connection.close()

    async def close(self) -> None:
        """Close for good."""
        self._is_closed = True
        if self._dialling is not None:
            await self._stop_dialling(self._dialling)
        if self._connection is not None:
            await self._connection.close()

    async def _stop_dialling(self, dialling: asyncio.Task[Connection]) -> None:
        dialling.cancel()
        await asyncio.wait([dialling], timeout=_HANG_UP_S)
        # A socket that was just opened is closed in the next rounds of the loop.
        for _ in range(_HANG_UP_ROUNDS):
            await asyncio.sleep(0)

    async def _shared(self, dialling: asyncio.Task[Connection]) -> Connection:
        try:
            return await asyncio.shield(dialling)
        except asyncio.CancelledError:
            if not dialling.cancelled():
                raise
            # Closing the link is no reason to cancel whoever waits for it.
            raise _closed() from None

    async def _dial(self) -> Connection:
        is_young = asyncio.get_running_loop().time() - self._opened_s < _YOUNG_S
        self._failures = self._failures + 1 if is_young else 0
        tries = 0
        while True:
            tries += 1
            await asyncio.sleep(dial_delay_ms(self._failures, random.uniform) / 1000)
            try:
                return await self._dial_once()
            except StoreError as error:
                self._failures += 1
                self._route.heed(error)
                if not self._may_dial_on(error):
                    self._failures = 0
                    self._login.note(error, was_open=self._was_open)
                    raise
                self._report(error, tries)

    def _may_dial_on(self, error: StoreError) -> bool:
        is_waited_for = self._waits_for_login and is_login_refused(error)
        return self._was_open and (is_waited_for or _may_heal(error))

    async def _dial_once(self) -> Connection:
        self.dial_count += 1
        connection = await dial(self._route, name=self._name)
        try:
            if self._prepare is not None:
                await self._prepare(connection)
        except BaseException:
            connection.abort("preparing the connection failed")
            raise
        self._connection, self._was_open = connection, True
        self._login.clear()
        self._report_back()
        self._opened_s = asyncio.get_running_loop().time()
        return connection

    def _report_back(self) -> None:
        address = str(self._route)
        _refusals_logged.pop(address, None)
        since_s = _away_since_s.pop(address, None)
        if since_s is not None:
            away_s = time.monotonic() - since_s
            logger.warning("connected to %s again after %.1f s", address, away_s)

    def _report(self, error: StoreError, tries: int) -> None:
        _away_since_s.setdefault(str(self._route), time.monotonic())
        if is_login_refused(error):
            if _refusals_logged[str(self._route)].allows():
                logger.warning("a login is refused and tried again: %s", error)
            return
        level = logging.WARNING if tries in (1, 10) else logging.DEBUG
        logger.log(
            level, "the server at %s does not answer, dialling again", self._route,
            extra={"error": str(error)},
        )  # fmt: skip

    def _dialled(self, task: asyncio.Task[Connection]) -> None:
        self._dialling = None
        if not task.cancelled():
            task.exception()


def _closed() -> ConnectionLost:
    return ConnectionLost("this connection was closed; open a new one", outcome="not_done")


def _may_heal(error: StoreError) -> bool:
    if isinstance(error, ServerUnreachable | ConnectionLost):
        return True
    return action_for(error) is not Action.RAISE


async def pause(error: StoreError) -> None:
    """Wait as long as the error asks before the next try on the same link."""
    if action_for(error) is Action.WAIT:
        await asyncio.sleep(_WAIT_MS / 1000)
