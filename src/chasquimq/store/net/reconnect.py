"""Keeps one connection to the server: dials again after it breaks, and prepares each new one."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from chasquimq.errors import ConnectionLost, ServerUnreachable, StoreError
from chasquimq.model.log import LogThrottle, get_logger
from chasquimq.store.net.connect import DialRefusals, DialSchedule, dial, is_young
from chasquimq.store.net.connection import Connection, Part, Reply
from chasquimq.store.net.errors import (
    Action,
    about,
    action_for,
    is_login_refused,
    is_worth_asking_again,
)
from chasquimq.store.net.route import Route

if TYPE_CHECKING:
    from chasquimq.settings import ConnectionSettings

logger = get_logger(__name__)

Prepare = Callable[[Connection], Awaitable[None]]
_WAIT_MS = 50
_HANG_UP_S = 1.0
_HANG_UP_ROUNDS = 3
# All connections of a process that one address refuses share one line of the log.
_refusals_logged: defaultdict[str, LogThrottle] = defaultdict(LogThrottle)
_outages_logged: defaultdict[str, LogThrottle] = defaultdict(LogThrottle)
# Since when an address could not be dialled; the first connection that is back reports the end.
_away_since_s: dict[str, float] = {}


class Deadline(NamedTuple):
    """Until when a call must be answered, in the time of its loop.

    One that does not `wait` is not sent again, and does not outlast a server that is away.
    """

    at_s: float
    limit_ms: int
    waits: bool
    # Which setting the limit comes from.
    setting: str = "add_timeout_ms"

    @property
    def left_s(self) -> float:
        """How much of the time is left."""
        return self.at_s - asyncio.get_running_loop().time()

    def renewed(self, now_s: float) -> Deadline:
        """As long again."""
        return self._replace(at_s=now_s + self.limit_ms / 1000)

    def __str__(self) -> str:
        return f"within {self.limit_ms / 1000:g} s ({self.setting})"


class ReconnectingConnection:
    """The connection of one role, which comes back after it breaks.

    A login that is refused is an error for callers, which get it again until the next dial is due;
    so is, on a connection that was open before, whatever makes a new connection of no use.
    With `waits_for_login` an open one whose password changed dials on, as in an outage.
    `patience_s` is how long a caller waits for a server that is away; None: for ever. One
    that no caller waits for does not dial.
    """

    def __init__(
        self,
        settings: ConnectionSettings,
        *,
        name: str = "",
        prepare: Prepare | None = None,
        waits_for_login: bool = False,
        patience_s: float | None = None,
    ) -> None:
        self._route = Route(settings)
        self._answer_s = settings.command_timeout_ms / 1000
        self._patience_s = patience_s
        self._name = name
        self._prepare = prepare
        self._waits_for_login = waits_for_login
        self._login = DialRefusals()
        self._connection: Connection | None = None
        self._dialling: asyncio.Task[Connection] | None = None
        self._schedule = DialSchedule(random.uniform)
        # Set while the next dial is waited for; done: it is to begin now.
        self._pausing: asyncio.Future[None] | None = None
        # The callers that wait for a connection, and the end of the dial under way for those that do not.
        self._caller_count = 0
        self._refused: asyncio.Future[None] | None = None
        self._refusal: StoreError | None = None
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
        """Whether no caller waits for an answer or for the connection."""
        is_asked = self._connection is not None and self._connection.has_unanswered
        return not self._caller_count and not is_asked

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def address(self) -> str:
        """Where it leads, without a password."""
        return str(self._route)

    @property
    def refusal(self) -> StoreError | None:
        """How the last dial ended; None where it opened a connection."""
        return self._refusal

    async def connection(self, *, within_s: float | None = None, waits: bool = True) -> Connection:
        """The open connection, or a new one.

        The first dial is tried once. Later ones go on until `within_s` (or the
        patience of the connection) is over; a caller that does not wait gets a refusal at once.
        """
        current = self.current
        if current is not None:
            return current
        if self._is_closed:
            raise _closed()
        dialling = self._dial_soon(waits=waits)
        wanted = self._shared(dialling) if waits else self._next_end(dialling)
        within_s = self._patience_s if within_s is None else within_s
        self._caller_count += 1
        try:
            async with asyncio.timeout(within_s):
                return await wanted
        except TimeoutError:
            raise self._too_late(within_s) from self._refusal
        finally:
            self._caller_count -= 1

    async def call(self, *parts: Part, block_ms: int = 0) -> Reply:
        """One command on the open connection; errors of the server are raised as ours."""
        if self._patience_s is None:
            return await self._call(parts, block_ms)
        within_s = self._patience_s + block_ms / 1000
        try:
            async with asyncio.timeout(within_s):
                return await self._call(parts, block_ms)
        except TimeoutError:
            raise self._no_answer(within_s) from self._refusal

    async def _call(self, parts: Sequence[Part], block_ms: int) -> Reply:
        connection = await self.connection()
        try:
            return await connection.call(*parts, block_ms=block_ms)
        except StoreError as error:
            self.on_error(error)
            raise

    async def ask(self, request: bytes, reply_count: int = 1) -> list[Reply]:
        """Questions that change nothing: asked again when the connection breaks under them.

        A server that cannot answer now, or is the wrong one, is asked again too. All of it takes
        no longer than one command may.
        """
        asking = _Asking()
        try:
            async with asyncio.timeout(self._answer_s):
                return await self._ask_until_answered(request, reply_count, asking)
        except TimeoutError:
            if asking.replies is not None:
                return asking.replies
            raise self._no_answer(self._answer_s) from (asking.lost or self._refusal)

    async def _ask_until_answered(
        self, request: bytes, reply_count: int, asking: _Asking
    ) -> list[Reply]:
        while True:
            connection = await self.connection(within_s=self._answer_s)
            try:
                asking.replies = await connection.send(request, reply_count)
            except ConnectionLost as lost:
                asking.lost = lost
                continue
            passing = next(filter(is_worth_asking_again, asking.replies), None)
            if passing is None:
                return asking.replies
            self.on_error(passing)
            await pause(passing)

    def on_error(self, error: StoreError) -> None:
        """Drop a connection that the error says is of no more use."""
        if self._connection is None or isinstance(error, ConnectionLost):
            return
        if action_for(error) in (Action.REDIAL, Action.REDISCOVER):
            self._route.on_error(error)
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

    def _dial_soon(self, *, waits: bool) -> asyncio.Task[Connection]:
        """The dialling that is under way, or a new one; hurried on where dials are left.

        Raises:
            ConnectionLost: the next dial is not due, and the caller does not wait for it.
        """
        now_s = asyncio.get_running_loop().time()
        if self._dialling is None:
            self._login.check()
            self._look_back(now_s)
        is_due = self._schedule.wait_s(now_s) == 0 or self._schedule.allows_early(
            now_s, is_urgent=not waits
        )
        if not (is_due or waits) and (self._dialling is None or self._pausing is not None):
            raise self._refused_before()
        if is_due and self._pausing is not None and not self._pausing.done():
            self._pausing.set_result(None)
        if self._dialling is None:
            self._dialling = self._begin(0.0 if is_due else self._schedule.wait_s(now_s))
        return self._dialling

    def _begin(self, pause_s: float) -> asyncio.Task[Connection]:
        loop = asyncio.get_running_loop()
        if pause_s:
            self._pausing = loop.create_future()
        dialling = loop.create_task(self._dial(pause_s), name=f"chasqui-dial-{self._name}")
        dialling.add_done_callback(_retrieve)
        return dialling

    def _look_back(self, now_s: float) -> None:
        """A connection has broken, or the last dial is long ago."""
        self._schedule.asked(now_s)
        if self._connection is not None:
            self._connection = None
            self._schedule.broke(now_s, is_young=is_young(self._opened_s, now_s))

    async def _shared(self, dialling: asyncio.Task[Connection]) -> Connection:
        try:
            return await asyncio.shield(dialling)
        except asyncio.CancelledError:
            if not dialling.cancelled():
                raise
            # Closing it is no reason to cancel those that wait for it.
            raise _closed() from None

    async def _next_end(self, dialling: asyncio.Task[Connection]) -> Connection:
        """The connection, or how the dial that is under way failed."""
        if self._refused is None:
            self._refused = asyncio.get_running_loop().create_future()
        refused = self._refused
        await asyncio.wait([dialling, refused], return_when=asyncio.FIRST_COMPLETED)
        if dialling.done():
            return await self._shared(dialling)
        raise self._refused_before()

    def _refused_before(self) -> StoreError:
        """The last refusal, for one more caller."""
        refusal = self._refusal
        if refusal is None:
            return ConnectionLost(
                f"the server at {self.address} must keep a connection and has just broken one; "
                "nothing was sent: ask again in a moment, or wait for the next dial",
                outcome="not_done",
            )
        return about(refusal, ())

    def _too_late(self, within_s: float | None) -> ConnectionLost:
        return ConnectionLost(f"{self._deadline(within_s)}{self._reason()}", outcome="not_done")

    def _no_answer(self, within_s: float | None) -> ConnectionLost:
        return ConnectionLost(f"{self._deadline(within_s)}{self._reason()}")

    def _deadline(self, within_s: float | None) -> str:
        return f"the server at {self.address} must answer within {within_s or 0:g} s and did not"

    def _reason(self) -> str:
        """What the last dial came to, which says what to try."""
        return f" ({self._refusal})" if self._refusal is not None else "; is it running?"

    async def _dial(self, pause_s: float) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            while True:
                await self._pause(pause_s)
                if self._refusal is not None and not self._caller_count:
                    raise self._refusal
                self._schedule.dialled(loop.time())
                try:
                    return await self._dial_once()
                except StoreError as error:
                    self._note_failure(error)
                pause_s = self._schedule.wait_s(loop.time())
        finally:
            # A caller that comes from now on needs another dial.
            self._dialling = None

    async def _pause(self, pause_s: float) -> None:
        """Wait for the next dial to be due, or to be allowed before."""
        self._pausing = self._pausing or asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait([self._pausing], timeout=pause_s)
        finally:
            self._pausing = None

    def _note_failure(self, error: StoreError) -> None:
        self._refusal = error
        self._route.on_error(error)
        if not self._may_dial_on(error):
            self._login.note(error, was_open=self._was_open)
            raise error
        self._schedule.failed(asyncio.get_running_loop().time())
        self._report(error)
        if self._refused is not None:
            self._refused.set_result(None)
            self._refused = None

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
        self._refusal = None
        self._login.clear()
        self._report_back()
        self._opened_s = asyncio.get_running_loop().time()
        return connection

    def _report_back(self) -> None:
        address = str(self._route)
        _refusals_logged.pop(address, None)
        _outages_logged.pop(address, None)
        since_s = _away_since_s.pop(address, None)
        if since_s is not None:
            away_s = time.monotonic() - since_s
            logger.warning("connected to %s again after %.1f s", address, away_s)

    def _report(self, error: StoreError) -> None:
        _away_since_s.setdefault(str(self._route), time.monotonic())
        if is_login_refused(error):
            if _refusals_logged[str(self._route)].allows():
                logger.warning(
                    "the server at %s refuses the login, trying again: %s", self._route, error
                )
            return
        level = logging.WARNING if _outages_logged[str(self._route)].allows() else logging.DEBUG
        logger.log(
            level, "the server at %s does not answer, dialling again: %s", self._route, error,
            extra={"error": str(error)},
        )  # fmt: skip


class _Asking:
    """What a question met so far."""

    replies: list[Reply] | None = None
    lost: ConnectionLost | None = None


def _retrieve(dialling: asyncio.Task[Connection]) -> None:
    # Perhaps no caller waits any more for what it came to.
    if not dialling.cancelled():
        dialling.exception()


def _closed() -> ConnectionLost:
    return ConnectionLost("this connection was closed; open a new one", outcome="not_done")


def _may_heal(error: StoreError) -> bool:
    if isinstance(error, ServerUnreachable | ConnectionLost):
        return True
    return action_for(error) is not Action.RAISE


async def pause(error: StoreError) -> None:
    """Wait as long as the error asks before the next try on the same connection."""
    if action_for(error) is Action.WAIT:
        await asyncio.sleep(_WAIT_MS / 1000)
