"""Dials a server: once, again as seldom as an outage asks for, and until it answers."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from chasquimq.errors import ConnectionLost, ServerUnreachable, StoreError
from chasquimq.model.log import get_logger
from chasquimq.store.net.address import (
    check_listener,
    new_async_connection,
)
from chasquimq.store.net.connection import Connection, pack
from chasquimq.store.net.errors import (
    Action,
    about,
    action_for,
    client_errors_as_ours,
    is_login_refused,
)
from chasquimq.store.net.route import Route

if TYPE_CHECKING:
    from chasquimq.settings import ConnectionSettings
    from chasquimq.store.net.connection import Reply
    from chasquimq.store.net.route import Asking, FoundT, Question, Range

logger = get_logger(__name__)


# What asks for the way to a server.
_NAME = "chasqui-route"


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


# ── when to dial again ────────────────────────────────────────────────────────────────────────────

# Dense at first, so that a server restart costs under two seconds; sparse later, so that
# an outage of a minute costs at most fifteen dials for each connection, one of them kept for a
# caller that needs the connection between two.
_CEILINGS_MS = (200, 400, 800, 1_600)
_LONG_MS_MIN, _LONG_MS_MAX = 5_800, 6_000
_WINDOW_S = 60.0
_DIALS_PER_WINDOW_MAX = 15
_EARLY_GAP_S = 1.0
# After this long without a dial the next outage counts as a new one: it begins with dense dials.
_QUIET_S = 30.0
# A server that accepts and then breaks its connections must not be dialled in a loop.
_YOUNG_S = 1.0


def is_young(opened_s: float, now_s: float) -> bool:
    """Return whether a connection opened so lately that its end counts as a failed dial."""
    return now_s - opened_s < _YOUNG_S


def dial_delay_ms(failures: int, uniform: Callable[[float, float], float]) -> float:
    """Return the pause after `failures` failed dials in a row."""
    if failures <= 0:
        return 0.0
    if failures <= len(_CEILINGS_MS):
        ceiling = _CEILINGS_MS[failures - 1]
        return uniform(ceiling / 2, ceiling)
    return uniform(_LONG_MS_MIN, _LONG_MS_MAX)


class DialSchedule:
    """Decides when a broken connection may dial: ever less often, and at most 15 times a minute.

    A caller that needs the connection may dial before a long pause is over, as long as the limit
    holds. All times are of one clock, in seconds.
    """

    def __init__(self, uniform: Callable[[float, float], float]) -> None:
        self._uniform = uniform
        self._failures = 0
        self._not_before_s = float("-inf")
        self._dials_s: deque[float] = deque(maxlen=_DIALS_PER_WINDOW_MAX)

    def wait_s(self, now_s: float) -> float:
        """Return how long the next dial has to wait."""
        return max(0.0, self._not_before_s - now_s)

    def dialled(self, now_s: float) -> None:
        """Record that a dial begins."""
        self._dials_s.append(now_s)

    def failed(self, now_s: float) -> None:
        """Record that a dial has failed."""
        self._failures += 1
        self._put_off(now_s)

    def broke(self, now_s: float, *, is_young: bool) -> None:
        """Record that an open connection broke; a young one counts as a failed dial."""
        self._failures = self._failures + 1 if is_young else 0
        self._put_off(now_s)

    def asked(self, now_s: float) -> None:
        """Record that a caller needs the connection; after a long quiet the failures are forgotten."""
        if self._dials_s and now_s - self._dials_s[-1] > _QUIET_S:
            self._failures = 0

    def allows_early(self, now_s: float, *, is_urgent: bool = False) -> bool:
        """Return whether a dial before its time keeps every minute below the limit.

        Short pauses are always kept, except for an urgent caller.
        """
        is_long = self._failures > len(_CEILINGS_MS) and now_s - self._dials_s[-1] >= _EARLY_GAP_S
        return (is_long or is_urgent) and self._leaves_enough(now_s)

    def _leaves_enough(self, now_s: float) -> bool:
        """In the worst case all later dials follow at the shortest of the long pauses."""
        return all(
            made + 1 + self._later_dials(now_s - dialled_s) <= _DIALS_PER_WINDOW_MAX
            for made, dialled_s in enumerate(reversed(self._dials_s), start=1)
            if now_s - dialled_s < _WINDOW_S
        )

    def _later_dials(self, age_s: float) -> int:
        """How many more may follow within the minute that began so long ago."""
        return int((_WINDOW_S - age_s) * 1000 // _LONG_MS_MIN)

    def _put_off(self, now_s: float) -> None:
        self._not_before_s = now_s + dial_delay_ms(self._failures, self._uniform) / 1000


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


# ── waiting for a server ──────────────────────────────────────────────────────────────────────────


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
    """Dials with the pauses of an outage."""

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
        connection: Connection | None = None
        try:
            connection = await dial(Route(self._settings), name="chasqui-waiting")
            await connection.call("PING")
        except StoreError as error:
            return self._is_answer(error)
        finally:
            if connection is not None:
                await connection.close()
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
