"""Which queue is read from which channel: decided once, written down, never both."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from chasquimq.errors import PreconditionFailed, ServerRefused
from chasquimq.spark.lake.checkpoints import own_folder
from chasquimq.spark.lake.durable import write_durably
from chasquimq.spark.lake.extent import queues_in
from chasquimq.spark.lake.lake import Lake
from chasquimq.spark.lake.tables import BRONZE_ATTEMPTS, BRONZE_EVENTS
from chasquimq.store.inspect.ranges import NO_ENTRY
from chasquimq.wire.keys import QueueKeys
from chasquimq.wire.stream_entry import first_values

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from chasquimq.spark.pipeline.settings import PipelineSettings
    from chasquimq.store.inspect.ranges import RangeStore

HISTORY: Final = "history"
EVENTS: Final = "events"
CHANNELS: Final = (HISTORY, EVENTS)
# A worker writes its first events at once, but its first history after a while.
SETTLE_MS: Final = 5_000
# An attempt is over with any of these; so many events are looked at for one, at either end.
_ENDS: Final = (b"completed", b"failed", b"retry-scheduled", b"dlq")
_LOOK_AT: Final = 1_000
# Where the rows of a channel are kept as they were read.
BRONZE: Final = {EVENTS: BRONZE_EVENTS, HISTORY: BRONZE_ATTEMPTS}


def by_channel(channels: Mapping[str, str]) -> dict[str, list[str]]:
    """The queues of each channel that has any."""
    queues: dict[str, list[str]] = {}
    for queue, channel in sorted(channels.items()):
        queues.setdefault(channel, []).append(queue)
    return queues


class Channels:
    """The choice for each queue of a lake, as far as it was made."""

    def __init__(self, lake: Path, settings: PipelineSettings, store: RangeStore) -> None:
        self._lake = Lake(lake)
        self._path = own_folder(lake) / "channels.json"
        self._settings = settings
        self._store = store

    def decide(self) -> dict[str, str]:
        """The channel of each queue that has one; a queue of which nothing is known has none yet.

        Raises:
            SettingsError: a channel was asked for, and the lake has read a queue from the other.
        """
        chosen = self._remembered()
        wanted = self._settings.queues or self._found()
        decided = {queue: self._channel(queue, chosen.get(queue)) for queue in wanted}
        known = {queue: channel for queue, channel in decided.items() if channel is not None}
        if known.items() - chosen.items():
            self._remember(chosen | known)
        return known

    def _channel(self, queue: str, before: str | None) -> str | None:
        asked = None if self._settings.channel == "auto" else self._settings.channel
        if asked and before and asked != before:
            hint = (
                f"the lake holds attempts of queue {queue!r} from its {before}; name another lake"
            )
            raise PreconditionFailed("channel", asked, before, hint=hint)
        return asked or before or self._best(queue)

    def _best(self, queue: str) -> str | None:
        keys = QueueKeys(queue)
        try:
            history, events = self._store.facts([keys.history, keys.events])
        except ServerRefused as refused:
            if refused.code != "WRONGTYPE" or self._settings.queues:
                raise
            # No option named it: a key of another program that looks like ours must not stop the others.
            return None
        if history.length:
            return HISTORY
        return EVENTS if events.length and self._has_old_end(keys.events) else None

    def _has_old_end(self, key: str) -> bool:
        """Whether an attempt ended so long ago that its history would be there, if there was one.

        A start proves nothing: its handler may take hours.
        """
        settled_ms = max(0, time.time_ns() // 1_000_000 - SETTLE_MS)
        oldest = self._store.entries(key, NO_ENTRY, f"{settled_ms}-0", _LOOK_AT)
        newest = self._store.newest(key, f"{settled_ms}-0", _LOOK_AT)
        return any(first_values(fields).get(b"e") in _ENDS for _, fields in (*oldest, *newest))

    def _found(self) -> Iterable[str]:
        places = CHANNELS if self._settings.channel == "auto" else (self._settings.channel,)
        return sorted({queue for place in places for queue in self._store.queues("*", place)})

    def _remembered(self) -> dict[str, str]:
        try:
            return json.loads(self._path.read_text())
        except FileNotFoundError:
            return self._learned()

    def _learned(self) -> dict[str, str]:
        """What the rows of the lake say where nothing is written down: what was read stays read."""
        chosen = {
            queue: channel
            for channel, table in BRONZE.items()
            for queue in queues_in(self._lake, table)
        }
        if chosen:
            self._remember(chosen)
        return chosen

    def _remember(self, chosen: dict[str, str]) -> None:
        write_durably(self._path, json.dumps(chosen, sort_keys=True).encode())
