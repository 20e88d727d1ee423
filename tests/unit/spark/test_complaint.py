"""Our sentence is found in the long text of a failed query."""

from __future__ import annotations

from chasquimq.spark.failures import complaint

TEXT = """[PYTHON_DATA_SOURCE_ERROR] Failed to create Python data source instance: Traceback (most recent call last):
  File "options.py", line 167, in _count
    raise SettingsError(name, text, "a whole number")
chasquimq.errors.SettingsError: fetchSize must be a whole number, got 'x'
 SQLSTATE: 38000
"""


def test_the_sentence_is_found_among_tracebacks():
    assert complaint(RuntimeError(TEXT)) == "fetchSize must be a whole number, got 'x'"


def test_an_error_of_spark_has_no_sentence_of_ours():
    assert complaint(RuntimeError("[TABLE_OR_VIEW_NOT_FOUND] no such table")) is None
