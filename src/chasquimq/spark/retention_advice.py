"""Whether a pipeline that reads so often can lose anything, and what to set where it can."""

from __future__ import annotations

import math
from typing import Final

from chasquimq.model.finding import Finding, error, note, ok, size_text, warning
from chasquimq.settings import HistorySettings
from chasquimq.spark.report_format import count_text, ms_text, rate_text
from chasquimq.spark.retention import BYTES_PER_ROW, Kept

# A batch may take several times as long as the last one; below this many triggers it is dangerous.
SAFE_TRIGGERS: Final = 10
_STEP_BYTES: Final = 16 * 1024 * 1024
_STEP_EVENTS: Final = 100_000


def advise(kept: Kept, trigger_s: float) -> Finding:
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
