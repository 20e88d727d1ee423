"""What `chasqui spark enqueue` reads: queries that make no sense, and files with corrupt lines."""

from __future__ import annotations

import logging
from io import StringIO

import pytest
from pyspark.logger import PySparkLogger

from chasquimq.cli.spark.enqueue import CORRUPT, read_rows
from chasquimq.errors import RowsRefused, SettingsError, SparkFailed, StoreError

NOTHING = dict.fromkeys(("table", "parquet", "csv", "json", "sql"))


@pytest.mark.parametrize(
    "query", ["selec 1", "select nobody from range(3)", "select * from no_table"]
)
def test_a_query_that_spark_cannot_answer_is_wrong_usage(spark, query):
    with pytest.raises(SettingsError, match="sql must be a query that Spark can answer") as wrong:
        read_rows(spark, NOTHING | {"sql": query})

    assert wrong.value.exit_code == 2
    assert "\n" not in str(wrong.value)


def test_a_query_that_spark_cannot_answer_is_told_by_our_sentence_alone(spark):
    heard, logger = StringIO(), PySparkLogger.getLogger("SQLQueryContextLogger")
    handler = logging.StreamHandler(heard)
    logger.addHandler(handler)
    try:
        with pytest.raises(SettingsError):
            read_rows(spark, NOTHING | {"sql": "select nobody from range(3)"})
    finally:
        logger.removeHandler(handler)

    assert heard.getvalue() == ""


def test_a_table_that_is_not_there_is_no_wrong_usage(spark):
    with pytest.raises(SparkFailed, match="what to read must be readable") as missing:
        read_rows(spark, NOTHING | {"table": "no_table"})

    assert missing.value.exit_code == 1


@pytest.fixture
def broken(tmp_path):
    path = tmp_path / "broken.jsonl"
    path.write_text('{"a": 1, "id": "x"}\n{oops\n\n{"a": 2, "id": "y"}\n')
    return NOTHING | {"json": str(path)}


@pytest.mark.parametrize("query", [None, "select id, a from input where a > 0"])
@pytest.mark.takes_turns
def test_a_corrupt_line_is_a_fault_and_good_rows_know_nothing_of_it(
    spark, add, ready, broken, query
):
    frame = read_rows(spark, broken | {"sql": query})
    options = {"corrupt_column": CORRUPT, "id_column": "id"}

    with pytest.raises(RowsRefused) as refused:
        add(frame, check_first=True, **options)
    done = add(frame, on_error="skip", **options)

    assert refused.value.faults == done.faults == {"a corrupt record": 1}
    assert (done.rows, done.added) == (3, 2)
    assert sorted(ready()) == [("x", "", {"a": 1}), ("y", "", {"a": 2})]


def test_a_file_of_corrupt_lines_alone_is_no_file_of_json_lines(spark, tmp_path):
    (tmp_path / "pretty.json").write_text('{\n"a": 1\n}\n')

    with pytest.raises(StoreError, match="a JSON object on each line"):
        read_rows(spark, NOTHING | {"json": str(tmp_path / "pretty.json")})
