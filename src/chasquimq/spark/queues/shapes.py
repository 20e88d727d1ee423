"""The columns of what lies in a queue: stream, delayed, dlq and results."""

from __future__ import annotations

import re
from typing import Final

from chasquimq.spark.queues.options import Place, QueueOptions

_BODY = "<body>"
_JOB: Final = (
    ("queue", "string"),
    ("job_id", "string"),
    ("name", "string"),
    ("payload", _BODY),
    ("attempt", "int"),
    ("max_attempts", "long"),
    ("enqueued_at", "timestamp"),
)
COLUMNS: Final[dict[Place, tuple[tuple[str, str], ...]]] = {
    "stream": (
        *_JOB,
        ("ready_at", "timestamp"),
        ("due_at", "timestamp"),
        ("entry_id", "string"),
        ("fault", "string"),
    ),
    "delayed": (*_JOB, ("due_at", "timestamp"), ("fault", "string")),
    "dlq": (
        *_JOB,
        ("reason", "string"),
        ("detail", "string"),
        ("error", "string"),
        ("fingerprint", "string"),
        ("traceback", "string"),
        ("failed_at", "timestamp"),
        ("buried_at", "timestamp"),
        ("source_id", "string"),
        ("entry_id", "string"),
        ("fault", "string"),
    ),
    "results": (
        ("queue", "string"),
        ("job_id", "string"),
        ("status", "string"),
        ("result", _BODY),
        ("reason", "string"),
        ("error", "string"),
        ("ttl_ms", "long"),
        ("fault", "string"),
    ),
}
# One type by itself, such as bigint or array<string>; all else are fields.
_TYPE_ALONE = re.compile(r"\s*\w+\s*(<.*>|\(.*\))?\s*", re.DOTALL)


def ddl_of(options: QueueOptions) -> str:
    """The columns of a read, as Spark writes them."""
    body = _body_type(options)
    columns = COLUMNS[options.read]
    return ", ".join(f"{name} {body if kind == _BODY else kind}" for name, kind in columns)


def _body_type(options: QueueOptions) -> str:
    if not options.payload_schema:
        return "binary" if options.payload == "binary" else "string"
    text = options.payload_schema
    return text if _TYPE_ALONE.fullmatch(text) else f"struct<{text}>"
