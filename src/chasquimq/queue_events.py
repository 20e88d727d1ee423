"""Follows the events of one queue or several, as an async iterator or with callbacks."""

from __future__ import annotations

import inspect
import warnings
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property, partial
from typing import Any, Self

from chasquimq.errors import ConnectionLost, KindRefused, SettingsError
from chasquimq.model.json_value import ToDict
from chasquimq.settings import CredentialProvider, at_least
from chasquimq.store.event_reader import (
    CombinedEventReader,
    EventEntry,
    EventReader,
    open_event_reader,
)
from chasquimq.store.net.address import connection_settings
from chasquimq.wire.events import EventKind
from chasquimq.wire.keys import check_queue_name

_NUMBERS = frozenset({"attempt", "backoff_ms", "delay_ms", "duration_us", "ts", "enq", "dc", "due"})
EVENT_NAMES = tuple(kind.value for kind in EventKind)
Callback = Callable[["QueueEvent"], Awaitable[None] | None]


@dataclass(frozen=True)
class QueueEvent(ToDict):
    """One event: its name, whose it is, and everything else it says.

    `fields` holds the rest as the stream has it, numbers as int. `entry_id` is where to
    resume after this event.
    """

    name: str
    job_id: str | None
    job_name: str
    fields: dict[str, Any] = field(default_factory=dict[str, Any])
    queue: str = ""
    entry_id: str = ""

    @property
    def ts_ms(self) -> int | None:
        """The emitter's clock."""
        return self.fields.get("ts")

    @property
    def attempt(self) -> int | None:
        """The run it is about, counted from 1."""
        return self.fields.get("attempt")

    @property
    def reason(self) -> str | None:
        return self.fields.get("reason")

    @property
    def duration_us(self) -> int | None:
        return self.fields.get("duration_us")

    @property
    def worker(self) -> str | None:
        return self.fields.get("w")


class QueueEvents:
    """Follows the events stream: `async for event in QueueEvents("emails")`.

    `last_event_id` is where to begin: `$` for what comes from now on, `0` for all that is
    kept, or the `entry_id` of the last event seen. Connections that break are opened again.
    """

    def __init__(
        self,
        queue_name: str | Sequence[str],
        *,
        redis_url: str | None = None,
        tls: bool = False,
        last_event_id: str = "$",
        block_ms: int = 5_000,
        count: int = 100,
        credential_provider: CredentialProvider | None = None,
        insecure_tls: bool = False,
    ) -> None:
        queues = _listed(queue_name)
        self.name = queues[0]
        self._open_tail = partial(
            open_event_reader,
            queues,
            connection_settings(
                redis_url, tls=tls, insecure_tls=insecure_tls,
                credential_provider=credential_provider,
            ),
            after_id=_checked_id(last_event_id),
            block_ms=_positive("block_ms", block_ms), count=_positive("count", count),
        )  # fmt: skip
        self._ready: deque[QueueEvent] = deque()
        self._callbacks: list[tuple[str | None, Callback]] = []
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> QueueEvent:
        while not self._ready:
            if self._is_closed:
                raise StopAsyncIteration
            await self._fill()
        return self._ready.popleft()

    @property
    def last_event_ids(self) -> dict[str, str]:
        """Where to resume each queue."""
        return self._tail.last_ids

    @cached_property
    def _tail(self) -> EventReader | CombinedEventReader:
        # Not before it is needed: one server or a cluster is known when the server was looked up.
        return self._open_tail()

    def on(self, event_name: str | None, callback: Callback) -> None:
        """Call the function for each event of that name, or for every one with None."""
        _check_event_name(event_name)
        if not callable(callback):
            raise KindRefused("callback", callback, "a function that takes one argument")
        self._callbacks.append((event_name, callback))

    async def run(self) -> None:
        """Call the callbacks until closed."""
        async for event in self:
            for name, callback in self._callbacks:
                if name is None or name == event.name:
                    answer = callback(event)
                    if inspect.isawaitable(answer):
                        await answer

    async def close(self) -> None:
        """End the iteration."""
        self._is_closed = True
        await self._tail.close()

    async def _fill(self) -> None:
        try:
            self._ready.extend(map(_event, await self._tail.read()))
        except ConnectionLost:
            if not self._is_closed:
                raise


def _listed(queue_name: str | Sequence[str]) -> list[str]:
    # Arguments of users may be of any type.
    is_many = isinstance(queue_name, Iterable)  # pyright: ignore[reportUnnecessaryIsInstance]
    if not is_many or isinstance(queue_name, bytes):
        raise KindRefused("queue_name", queue_name, "one name or several")
    queues = [queue_name] if isinstance(queue_name, str) else list(queue_name)
    if not queues:
        raise SettingsError("queue_name", queues, "one name or several")
    return list(map(check_queue_name, queues))


def _event(entry: EventEntry) -> QueueEvent:
    fields: dict[str, Any] = dict(entry.fields)
    name, job_id = fields.pop("e", ""), fields.pop("id", "")
    job_name = fields.pop("n", "")
    for key in _NUMBERS & fields.keys():
        fields[key] = _number(fields[key])
    return QueueEvent(name, job_id or None, job_name, fields, entry.queue, entry.entry_id)


def _number(text: str) -> int | str:
    # Text of another writer is passed on as it is.
    return int(text) if text.isascii() and text.isdigit() else text


def _checked_id(text: str) -> str:
    # Arguments of users may be of any type.
    is_text = isinstance(text, str)  # pyright: ignore[reportUnnecessaryIsInstance]
    ms, _, seq = text.partition("-") if is_text else ("", "", "")
    is_id = ms.isascii() and ms.isdigit() and (not seq or (seq.isascii() and seq.isdigit()))
    if text != "$" and not is_id:
        raise SettingsError("last_event_id", text, '"$", "0" or an entry id like "1700000000000-0"')
    return text


def _check_event_name(name: object) -> None:
    if name is None or name in EVENT_NAMES:
        return
    if not isinstance(name, str):
        raise KindRefused("event_name", name, "the name of an event, or None for all")
    # Other programs may write events of their own, so this is no error.
    close = get_close_matches(name, EVENT_NAMES, 1)
    hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(EVENT_NAMES)}"
    warnings.warn(f"no event of ours is called {name!r}; {hint}", stacklevel=3)


def _positive(name: str, value: int) -> int:
    at_least(name, value, 1)
    return value
