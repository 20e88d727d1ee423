"""`chasqui spark enqueue --sql`: what is wrong with a query is the mistake of whoever wrote it."""

from __future__ import annotations

import pytest

from chasquimq.cli.main import code_of
from chasquimq.cli.spark_enqueue import read_rows
from chasquimq.errors import SettingsError, SparkFailed

NOTHING = dict.fromkeys(("table", "parquet", "csv", "json", "sql"))


@pytest.mark.parametrize(
    "query", ["selec 1", "select nobody from range(3)", "select * from no_table"]
)
def test_a_query_that_spark_cannot_answer_is_wrong_usage(spark, query):
    with pytest.raises(SettingsError, match="sql must be a query that Spark can answer") as wrong:
        read_rows(spark, NOTHING | {"sql": query})

    assert code_of(wrong.value) == 2
    assert "\n" not in str(wrong.value)


def test_a_table_that_is_not_there_is_no_wrong_usage(spark):
    with pytest.raises(SparkFailed, match="what to read must be readable") as missing:
        read_rows(spark, NOTHING | {"table": "no_table"})

    assert code_of(missing.value) == 1
