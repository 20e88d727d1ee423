"""The data source `chasqui`: DataFrames into a queue, and what lies in a queue as DataFrames."""

from __future__ import annotations

from collections.abc import MutableMapping

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from chasquimq.errors import SettingsError
from chasquimq.spark.queues.layout import layout_of
from chasquimq.spark.queues.options import parse_options, refuse_for
from chasquimq.spark.queues.reading import QueueReader
from chasquimq.spark.queues.shapes import ddl_of
from chasquimq.spark.queues.sink import QueueStreamWriter, QueueWriter


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
