"""JSON files as rows: lines that are no JSON are kept apart, so that each of them is counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from chasquimq.errors import StoreError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Spark's own name for it may be a key of the data.
CORRUPT: Final = "_chasqui_corrupt_line"
# Spark reads no column of corrupt lines alone; this one is beside it, and always empty.
_BESIDE: Final = "_chasqui_nothing"


class JsonLines:
    """The lines of JSON files; `rows` are those that can be read."""

    def __init__(self, session: SparkSession, path: str) -> None:
        self._session = session
        self._path = path
        found = session.read.json(path, columnNameOfCorruptRecord=CORRUPT)
        if found.columns == [CORRUPT]:
            raise StoreError(
                f"{path} must hold a JSON object on each line, and no line of it is one; "
                "write every object on a line of its own"
            )
        self._has_corrupt = CORRUPT in found.columns
        self.rows = (
            found.where(found[CORRUPT].isNull()).drop(CORRUPT) if self._has_corrupt else found
        )

    def beside(self, chosen: DataFrame) -> DataFrame:
        """These rows and the corrupt lines, which have nothing but a column of their own."""
        if not self._has_corrupt:
            return chosen
        from pyspark.sql import functions as F  # noqa: N812  Spark's own habit

        nothing = [F.lit(None).cast(one.dataType).alias(one.name) for one in chosen.schema.fields]
        corrupt = self._corrupt().select(*nothing, CORRUPT)
        return chosen.select("*", F.lit(None).cast("string").alias(CORRUPT)).union(corrupt)

    def _corrupt(self) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812  Spark's own habit

        schema = f"{CORRUPT} string, {_BESIDE} string"
        lines = self._session.read.json(
            self._path, schema=schema, columnNameOfCorruptRecord=CORRUPT
        )
        text = F.concat(CORRUPT, F.coalesce(_BESIDE, F.lit("")))
        return lines.where(F.col(CORRUPT).isNotNull()).select(text.alias(CORRUPT))
