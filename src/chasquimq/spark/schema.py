"""The columns that the sources `chasqui.history` and `chasqui.events` yield, for Spark and Arrow.

A row is a finished attempt or an event, or a marker about an entry or a loss; markers have no
`job_id`. What the channels know about themselves travels with the rows, so that one read is enough:

history   `row` counts within an entry, and exactly one row an entry has `row <= 0`: its first
          attempt (0) or a marker (-1). That row alone carries `entry_rows`, `lost` (attempts its
          writer gave up before this entry) and `is_last` (the run closed with this entry).
events    `fault` names what could not be read: fields by name, or why there was no event at all.

Markers say in `outcome` (history) or `event` (events) what they stand for:
mark        an entry without attempts: the end of a run, or lost attempts alone
unreadable  an entry of a foreign, broken or later writer; `error` (or `fault`) says why
gap         `lost` entries after `stream_id` were gone before they were read, None: unknown
            how many; `error_class` (or `fault`) is `trimmed` or `reset` (the stream was deleted,
            re-created or rolled back)
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from chasquimq.spark.columns import ARROW_TYPES

MARK: Final = "mark"
UNREADABLE: Final = "unreadable"
GAP: Final = "gap"

# What the lake keeps of an attempt, and of an event; what follows them is for the reader alone.
ATTEMPT_FACTS: Final = (
    ("queue", "string"),
    ("stream_id", "string"),
    ("worker", "string"),
    ("run", "string"),
    ("seq", "long"),
    ("row", "int"),
    ("job_id", "string"),
    ("name", "string"),
    ("attempt", "int"),
    ("outcome", "string"),
    ("enqueued_at", "timestamp"),
    ("ready_at", "timestamp"),
    ("due_at", "timestamp"),
    ("started_at", "timestamp"),
    ("duration_us", "long"),
    ("deliveries", "int"),
    ("backoff_ms", "long"),
    ("error_class", "string"),
    ("error", "string"),
    ("fingerprint", "string"),
)
EVENT_FACTS: Final = (
    ("queue", "string"),
    ("stream_id", "string"),
    ("id_ms", "long"),
    ("id_seq", "long"),
    ("event", "string"),
    ("job_id", "string"),
    ("name", "string"),
    ("ts", "timestamp"),
    ("attempt", "int"),
    ("duration_us", "long"),
    ("reason", "string"),
    ("backoff_ms", "long"),
    ("delay_ms", "long"),
    ("enq", "timestamp"),
    ("worker", "string"),
    ("deliveries", "int"),
    ("error_class", "string"),
    ("fingerprint", "string"),
    ("due", "timestamp"),
    ("extra", "map<string,string>"),
)
_ATTEMPT_COLUMNS = (
    *ATTEMPT_FACTS,
    ("entry_rows", "int"),
    ("lost", "long"),
    ("is_last", "boolean"),
)
_EVENT_COLUMNS = (*EVENT_FACTS, ("fault", "string"), ("lost", "long"))


def _ddl(columns: tuple[tuple[str, str], ...]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns)


def _arrow(columns: tuple[tuple[str, str], ...]) -> pa.Schema:
    return pa.schema([(name, ARROW_TYPES[kind]) for name, kind in columns])


ATTEMPTS_DDL: Final = _ddl(_ATTEMPT_COLUMNS)
ATTEMPTS_ARROW: Final = _arrow(_ATTEMPT_COLUMNS)
EVENTS_DDL: Final = _ddl(_EVENT_COLUMNS)
EVENTS_ARROW: Final = _arrow(_EVENT_COLUMNS)
