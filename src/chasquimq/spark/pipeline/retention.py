"""How long the streams of a queue keep what is written to them, beside how often they are read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from chasquimq.errors import ServerRefused
from chasquimq.model.diagnosis import Diagnosis, error, note, ok, size_text, warning
from chasquimq.settings import ConnectionSettings, EventSettings, HistorySettings
from chasquimq.spark.offsets import id_parts
from chasquimq.spark.report.format import count_text, ms_text, rate_text
from chasquimq.store.inspect.ranges import NO_ENTRY, RangeStore, StreamFacts
from chasquimq.store.net.cluster import blocking_connection
from chasquimq.wire.keys import QueueKeys

# Into so many parts a stream is cut to find the busiest one.
STRETCHES: Final = 40
# A rate over less than this is that of a batch, not of a queue.
PEAK_OVER_S: Final = 1.0
_ROWS_FIELDS: Final = {"history": "n", "events": ""}


class Kept(NamedTuple):
    """What a stream holds now, and at most.

    `is_trimmed`: it has been full, so it holds as much as it can. Else `rows_max` follows from
    the default cap of its writers.
    """

    queue: str
    channel: str
    entries: int
    rows: int
    rows_max: int
    is_trimmed: bool
    mean_per_s: float
    peak_per_s: float

    @property
    def at_peak_s(self) -> float | None:
        """How long rows are kept while they come as fast as they ever did; None: none came."""
        return self.rows_max / self.peak_per_s if self.peak_per_s else None


class RetentionLook:
    """Looks at streams; nothing is moved, and no entry travels."""

    def __init__(self, connection: ConnectionSettings) -> None:
        self._store = RangeStore(connection, name="chasqui-check")
        self._plain = blocking_connection(connection, name="chasqui-check")

    def close(self) -> None:
        self._store.close()
        self._plain.close()

    def queues(self) -> list[str]:
        """Every queue with a history or events."""
        return sorted({*self._store.queues("*", "history"), *self._store.queues("*", "events")})

    def at(self, queue: str) -> Iterator[Kept]:
        """The channels of a queue that hold something."""
        keys = QueueKeys(queue)
        named = {"history": keys.history, "events": keys.events}
        found = self._store.facts(list(named.values()))
        for (channel, key), facts in zip(named.items(), found, strict=True):
            if facts.length:
                yield self._kept(queue, channel, key, facts)

    def _kept(self, queue: str, channel: str, key: str, facts: StreamFacts) -> Kept:
        marks = self._marks(key, channel, facts)
        rows = marks[-1][1]
        is_trimmed = facts.added is not None and facts.added > facts.length
        span_s = max(PEAK_OVER_S, (marks[-1][0] - marks[0][0]) / 1000)
        return Kept(
            queue, channel, facts.length, rows,
            rows if is_trimmed else max(rows, self._rows_max(key, channel, rows)),
            is_trimmed, rows / span_s, peak_per_s(marks),
        )  # fmt: skip

    def _marks(self, key: str, channel: str, facts: StreamFacts) -> list[tuple[int, int]]:
        """Moments in ms, and how many rows there were up to each of them."""
        marks = [(id_parts(facts.first_id)[0], 0)]
        after, count = NO_ENTRY, max(1, facts.length // STRETCHES)
        while stretch := self._store.measure(
            key, after, facts.last_id, count, 2**31, _ROWS_FIELDS[channel]
        ):
            after = stretch.last_id
            marks.append((id_parts(after)[0], marks[-1][1] + stretch.row_count))
        return marks

    def _rows_max(self, key: str, channel: str, rows: int) -> int:
        if channel == "events":
            return EventSettings().max_stream_len
        try:
            size_bytes = self._plain.call("MEMORY", "USAGE", key, "SAMPLES", 0)
        except ServerRefused:
            # Who may not ask takes what rows are known to weigh.
            return HistorySettings().max_bytes // BYTES_PER_ROW
        return rows * HistorySettings().max_bytes // max(1, size_bytes or 1)


BYTES_PER_ROW: Final = 54


def peak_per_s(marks: Sequence[tuple[int, int]]) -> float:
    """The fastest that rows came, over a second or more."""
    fastest, since = 0.0, 0
    for until in range(1, len(marks)):
        while marks[until][0] - marks[since + 1][0] >= PEAK_OVER_S * 1000:
            since += 1
        passed_s = max(PEAK_OVER_S, (marks[until][0] - marks[since][0]) / 1000)
        fastest = max(fastest, (marks[until][1] - marks[since][1]) / passed_s)
    return fastest


# A batch may take several times as long as the last one; below this many triggers it is dangerous.
SAFE_TRIGGERS: Final = 10
_STEP_BYTES: Final = 16 * 1024 * 1024
_STEP_EVENTS: Final = 100_000


def advise(kept: Kept, trigger_s: float) -> Diagnosis:
    """One finding about one channel of a queue."""
    held_s = kept.at_peak_s
    if held_s is None:
        return note(kept.channel, "nothing was written yet")
    found = _found(kept, held_s, trigger_s)
    if held_s >= SAFE_TRIGGERS * trigger_s:
        return ok(kept.channel, found)
    grade = error if held_s < 2 * trigger_s else warning
    return grade(kept.channel, found, _remedy(kept, held_s, trigger_s))


def _found(kept: Kept, held_s: float, trigger_s: float) -> str:
    holds = "holds" if kept.is_trimmed else "has room for"
    return (
        f"{holds} {count_text(kept.rows_max)} rows, {ms_text(held_s * 1000)} at the busiest "
        f"({rate_text(kept.peak_per_s)}); read every {ms_text(trigger_s * 1000)}"
    )


def _remedy(kept: Kept, held_s: float, trigger_s: float) -> str:
    wanted_rows = math.ceil(kept.peak_per_s * trigger_s * SAFE_TRIGGERS)
    sooner_ms = max(100, math.floor(held_s * 1000 / SAFE_TRIGGERS / 100) * 100)
    return (
        f"read every {ms_text(sooner_ms)} or sooner (--trigger), or {_more_room(kept, wanted_rows)}"
    )


def _more_room(kept: Kept, wanted_rows: int) -> str:
    if kept.channel == "events":
        cap = math.ceil(wanted_rows / _STEP_EVENTS) * _STEP_EVENTS
        return f"set events_max_stream_len to {count_text(cap)} on every worker"
    size_bytes = math.ceil(wanted_rows * BYTES_PER_ROW / _STEP_BYTES) * _STEP_BYTES
    size_bytes = max(size_bytes, 2 * HistorySettings().max_bytes)
    return f"set history_max_bytes to {size_text(size_bytes)} on every worker"
