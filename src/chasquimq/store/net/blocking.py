"""Talks to a server from a thread that waits, without an event loop."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import hiredis

from chasquimq.errors import ConnectionLost, StoreError
from chasquimq.store.net.address import check_listener, new_blocking_connection
from chasquimq.store.net.connect import dial_delay_ms, is_young
from chasquimq.store.net.connection import Part, Reply, pack
from chasquimq.store.net.errors import (
    Action,
    about,
    action_for,
    client_errors_as_ours,
    error_from_reply,
    is_login_refused,
    without_errors,
)
from chasquimq.store.net.route import Route
from chasquimq.store.net.script import is_forgotten, script

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chasquimq.settings import ConnectionSettings
    from chasquimq.store.net.route import Asking, FoundT, Question, Range

_READ_BYTES = 65_536
_ROUTE_NAME = "chasqui-route"
_LEAVING = (Action.REDIAL, Action.REDISCOVER)


Answer = TypeVar("Answer")


def ask_patiently(
    ask: Callable[[], Answer],
    may_pass: Callable[[StoreError], bool],
    *,
    within_s: float,
    pause_s: float,
) -> Answer:
    """Ask again after an error that may pass, until the time is over."""
    give_up_s = time.monotonic() + within_s
    while True:
        try:
            return ask()
        except StoreError as error:
            if time.monotonic() >= give_up_s or not may_pass(error):
                raise
            time.sleep(pause_s)


class BlockingConnection:
    """Dials when first used; after an error the next call dials again.

    One that was open before and meets only errors dials ever more slowly, and so does one whose
    login is refused; calls between two dials get the last error again.
    """

    def __init__(self, settings: ConnectionSettings, *, name: str = "") -> None:
        self._route = Route(settings)
        self._name = name
        self._pauses = _DialPauses()
        self._owner: Any = None
        self._owner_pid = 0
        self._reader = hiredis.Reader(replyError=error_from_reply)

    def call(self, *parts: Part) -> Reply:
        """One command, one reply; an error reply is raised."""
        return self._raised(self.send(pack(parts))[0])

    def run(self, name: str, keys: Sequence[str], *args: Part) -> Reply:
        """One script call; an error reply is raised."""
        act = script(name)
        (reply,) = self.send(act.by_hash(keys, args))
        if is_forgotten(reply):
            (reply,) = self.send(act.by_text(keys, args))
        return self._raised(reply)

    def ask(self, request: bytes, reply_count: int = 1) -> list[Reply]:
        """The replies to commands that leave in one write; the first error reply is raised."""
        return without_errors(self.send(request, reply_count))

    def send(self, request: bytes, reply_count: int = 1) -> list[Reply]:
        """Write the request and wait for its replies, error replies included."""
        socket = self._socket()
        try:
            socket.sendall(request)
            replies = [self._receive(socket) for _ in range(reply_count)]
        except BaseException as error:
            # A reply that comes late would be taken for the answer to the next question.
            self.close()
            if isinstance(error, OSError | hiredis.ProtocolError):
                raise ConnectionLost(f"the connection to the server broke: {error}") from error
            raise
        if self._reader.has_data():
            self.close()
        self._leave_if_wrong(replies)
        return replies

    def close(self) -> None:
        """Close; a later call dials again."""
        owner, self._owner = self._owner, None
        self._reader = hiredis.Reader(replyError=error_from_reply)
        if owner is not None:
            owner.disconnect()

    def _leave_if_wrong(self, replies: list[Reply]) -> None:
        """Leave a server that says it is the wrong one; the next call asks where to go."""
        for reply in replies:
            if isinstance(reply, StoreError) and action_for(reply) in _LEAVING:
                self._route.on_error(reply)
                self._pauses.left(reply)
                self.close()
                return
        self._pauses.worked()

    def _socket(self) -> Any:
        if self._owner is None or self._owner_pid != os.getpid():
            self._pauses.check()
            try:
                owner = self._dialled()
            except StoreError as error:
                self._pauses.failed(error)
                raise
            self._pauses.opened()
            self._owner, self._owner_pid = owner, os.getpid()
            self._reader = hiredis.Reader(replyError=error_from_reply)
        return self._owner._sock  # noqa: SLF001  the one private attribute we rely on

    def _dialled(self) -> Any:
        found = _answered(self._route.search())
        owner = new_blocking_connection(found, name=self._name)
        try:
            with client_errors_as_ours(found):
                owner.connect()
                check_listener(found, owner._sock)  # noqa: SLF001  as in `_socket`
        except BaseException:
            owner.disconnect()
            raise
        self._route.opened()
        if self._route.needs_role:
            self._check_role(owner)
        return owner

    def _check_role(self, owner: Any) -> None:
        self._reader = hiredis.Reader(replyError=error_from_reply)
        try:
            owner._sock.sendall(pack(("ROLE",)))  # noqa: SLF001  as in `_socket`
            self._route.check_role(self._receive(owner._sock))  # noqa: SLF001  as in `_socket`
        except BaseException as error:
            owner.disconnect()
            if isinstance(error, OSError | hiredis.ProtocolError):
                raise ConnectionLost(f"the connection to the server broke: {error}") from error
            raise

    def _receive(self, socket: Any) -> Reply:
        while (reply := self._reader.gets()) is False:
            received = socket.recv(_READ_BYTES)
            if not received:
                raise ConnectionResetError("the server closed the connection")
            self._reader.feed(received)
        return reply

    @staticmethod
    def _raised(reply: Reply) -> Reply:
        if isinstance(reply, StoreError):
            raise reply
        return reply


class _DialPauses:
    """When the next dial may be, for a connection that was open before or is refused."""

    def __init__(self) -> None:
        self._was_open = False
        self._failures = 0
        self._opened_s = 0.0
        self._not_before_s = 0.0
        self._error: StoreError | None = None

    def check(self) -> None:
        """Raise the last error again while it is too early for another dial."""
        if self._error is None or time.monotonic() >= self._not_before_s:
            return
        if is_login_refused(self._error):
            raise about(self._error, ()) from self._error.__cause__
        raise ConnectionLost(str(self._error), outcome="not_done") from self._error

    def opened(self) -> None:
        self._opened_s = time.monotonic()

    def worked(self) -> None:
        self._was_open, self._error = True, None
        if not self._is_young:
            self._failures = 0

    def left(self, error: StoreError) -> None:
        """A server that was good until now is left at once; one after the other, ever later."""
        self._put_off(error, self._failures + 1 if self._is_young else 0)

    def failed(self, error: StoreError) -> None:
        """A dial failed."""
        self._put_off(error, self._failures + 1)

    def _put_off(self, error: StoreError, failures: int) -> None:
        if not self._was_open and not is_login_refused(error):
            return
        self._error, self._failures = error, failures
        pause_ms = dial_delay_ms(failures, random.uniform)
        self._not_before_s = time.monotonic() + pause_ms / 1000

    @property
    def _is_young(self) -> bool:
        return is_young(self._opened_s, time.monotonic())


def find_masters_blocking(
    settings: ConnectionSettings,
) -> list[tuple[ConnectionSettings, list[Range]]]:
    """Every server that holds a part of the data, with its slots where it is one of a cluster."""
    return _answered(Route(settings).masters())


def _answered(asking: Asking[FoundT]) -> FoundT:
    answer: Reply | StoreError = None
    while True:
        try:
            question = asking.send(answer)
        except StopIteration as end:
            return end.value
        answer = _ask(question)


def _ask(question: Question) -> Reply | StoreError:
    connection = BlockingConnection(question.settings, name=_ROUTE_NAME)
    try:
        return connection.send(pack(question.command))[0]
    except StoreError as error:
        return error
    finally:
        connection.close()
