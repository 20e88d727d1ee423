"""Offers a queue to Spark as the data source `chasqui`: its columns, its readers and writers."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from chasquimq.errors import SettingsError
from chasquimq.spark.queues.options import Place, QueueOptions, parse_options, refuse_for
from chasquimq.spark.queues.reading import QueueReader
from chasquimq.spark.queues.rows import layout_of
from chasquimq.spark.queues.sink import QueueStreamWriter, QueueWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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


class QueueSource(DataSource):
    """`df.write.format("chasqui")`, `df.writeStream` and `spark.read`; wrong options come first."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._options = parse_options(options)

    @classmethod
    def name(cls) -> str:
        return "chasqui"

    def schema(self) -> str:
        return ddl_of(self._options)

    def reader(self, schema: StructType) -> DataSourceReader:
        refuse_for(self._options, "read")
        return QueueReader(self._options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise SettingsError("mode", "overwrite", "append; a queue is only ever added to")
        refuse_for(self._options, "write")
        return QueueWriter(self._options, layout_of(schema, self._options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802  Spark's
        if overwrite:
            raise SettingsError("outputMode", "complete", "append; a queue is only ever added to")
        refuse_for(self._options, "write")
        return QueueStreamWriter(self._options, layout_of(schema, self._options))


def register(session: SparkSession) -> None:
    """Let a session of this machine find the source where Spark would look in another Python.

    Spark looks for sources with the first `python3` of the path, unless `PYSPARK_PYTHON` says
    which. Sessions of other machines are left alone: what their Python is called is theirs.
    """
    if getattr(session, "_jvm", None) is None:
        return
    context: Any = session.sparkContext
    if not context.master.startswith("local") or _is_ours(context.pythonExec):
        return
    theirs, context.pythonExec = context.pythonExec, sys.executable
    try:
        session.dataSource.register(QueueSource)
    finally:
        context.pythonExec = theirs


def _is_ours(python: str) -> bool:
    # Links are not followed: that of an environment leads to a Python without its packages.
    return shutil.which(python) == sys.executable
