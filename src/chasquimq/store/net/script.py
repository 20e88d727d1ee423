"""Runs scripts by name: sent by hash, with the text where the server forgot it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from hashlib import sha1
from importlib.resources import files

from chasquimq.errors import ConnectionLost, ServerRefused, ServerUnreachable, StoreError
from chasquimq.store.net.connection import Connection, Part, Reply, pack
from chasquimq.store.net.errors import Action, action_for, is_worth_resending, may_have_left
from chasquimq.store.net.reconnect import Deadline, ReconnectingConnection, pause

_SHARED = ("needs", "ring", "workers_of")


class Script:
    """One atomic act; its file opens with its contract."""

    __slots__ = ("name", "sha", "text")

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        # The server names scripts by their SHA-1; nothing here is a secret.
        self.sha = sha1(text.encode(), usedforsecurity=False).hexdigest()

    def by_hash(self, keys: Sequence[str | bytes], args: Sequence[Part]) -> bytes:
        """The call as RESP bytes, naming the script."""
        return pack(("EVALSHA", self.sha, len(keys), *keys, *args))

    def by_text(self, keys: Sequence[str | bytes], args: Sequence[Part]) -> bytes:
        """The same call carrying the script, which also teaches it to the server."""
        return pack(("EVAL", self.text, len(keys), *keys, *args))


@cache
def script(name: str) -> Script:
    """The script of that file name, read once, below the shared functions that it calls."""
    return Script(name, _text_with(name, _SHARED))


def needed_text(name: str) -> str:
    """The text of a script without what it can do without: to ring."""
    return _text_with(name, [one for one in _SHARED if one != "ring"])


def _text_with(name: str, shared: Sequence[str]) -> str:
    """The text of a script below those of the shared functions that it calls."""
    text = _text_of(f"{name}.lua")
    called = [one for one in shared if re.search(rf"\b{one}\(", text)]
    return "".join([*(_text_of(f"shared/{one}.lua") for one in called), text])


def _text_of(path: str) -> str:
    return files("chasquimq.store").joinpath("scripts", path).read_text("utf-8")


async def run(connection: Connection, name: str, keys: Sequence[str | bytes], *args: Part) -> Reply:
    """One script call; an error reply is raised."""
    (reply,) = await run_many(connection, name, [(keys, args)])
    if isinstance(reply, StoreError):
        raise reply
    return reply


async def run_many(
    connection: Connection, name: str, calls: Sequence[tuple[Sequence[str | bytes], Sequence[Part]]]
) -> list[Reply]:
    """Several calls of one script in one write; error replies stay in the list."""
    act = script(name)
    request = b"".join(act.by_hash(keys, args) for keys, args in calls)
    replies = await connection.send(request, len(calls))
    for i, reply in enumerate(replies):
        if is_forgotten(reply):
            replies[i] = await _taught(connection, act.by_text(*calls[i]))
    return replies


async def _taught(connection: Connection, request: bytes) -> Reply:
    try:
        (reply,) = await connection.send(request)
    except StoreError as error:
        # The other calls have their replies, which must not be lost with this one's.
        return error
    return reply


def is_forgotten(reply: Reply) -> bool:
    """Whether the server answered that it does not know the script."""
    return isinstance(reply, ServerRefused) and action_for(reply) is Action.RELOAD


# How long a script remembers the answer to a request, for a resend.
REQUEST_TTL_S = 60
# Raises unless the user of a connection may do what is asked for.
Permit = Callable[[Connection], Awaitable[None]]


class ScriptRequest:
    """A call of a script that remembers its answer, until it is answered or its time is over."""

    def __init__(
        self, name: str, keys: Sequence[str], args: Sequence[Part], deadline: Deadline
    ) -> None:
        self._name = name
        self._keys = keys
        self._args = args
        self._deadline = deadline
        # Whether the server may have done it; true while an answer is awaited.
        self._may_be_done = False
        self._error: StoreError | None = None

    async def run(self, reconnecting: ReconnectingConnection, permit: Permit) -> Reply:
        """The answer; asked for again while errors pass and time is left."""
        try:
            async with asyncio.timeout_at(self._deadline.at_s):
                return await self._run_until_answered(reconnecting, permit)
        except TimeoutError:
            raise self._unanswered(reconnecting) from (self._error or reconnecting.refusal)

    async def _run_until_answered(
        self, reconnecting: ReconnectingConnection, permit: Permit
    ) -> Reply:
        deadline = self._deadline
        while True:
            try:
                connection = await reconnecting.connection(
                    within_s=deadline.left_s, waits=deadline.waits
                )
                await permit(connection)
                return await self._run_once(connection)
            except StoreError as error:
                # Once it may have been done, no later error can say that it was not.
                first = self._error if self._may_be_done and self._error else error
                self._error = first
                is_over = deadline.left_s <= 0 or not deadline.waits
                if is_over or not is_worth_resending(error) or reconnecting.is_closed:
                    raise self._ended(first) from first.__cause__
                reconnecting.on_error(error)
                await pause(error)

    async def _run_once(self, connection: Connection) -> Reply:
        was_done, self._may_be_done = self._may_be_done, True
        try:
            return await run(connection, self._name, self._keys, *self._args)
        except StoreError as error:
            self._may_be_done = was_done or may_have_left(error)
            raise

    def _ended(self, error: StoreError) -> StoreError:
        if not isinstance(error, ConnectionLost) or isinstance(error, ServerUnreachable):
            return error
        outcome = "unknown" if self._may_be_done else "not_done"
        return ConnectionLost(str(error), job_ids=error.job_ids, outcome=outcome)

    def _unanswered(self, reconnecting: ReconnectingConnection) -> ConnectionLost:
        outcome, hint = "not_done", "nothing was done: ask again when it is back"
        if self._may_be_done:
            outcome, hint = "unknown", "it may be done or not: look before you ask again"
        return ConnectionLost(
            f"the server at {reconnecting.address} must answer within "
            f"{self._deadline.limit_ms / 1000:g} s and did not; {hint}",
            outcome=outcome,
        )
