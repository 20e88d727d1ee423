"""`chasqui spark enqueue` without Spark: wrong command lines, and what is told in the end."""

from __future__ import annotations

import pytest

from chasquimq.cli.app import main
from chasquimq.cli.spark.enqueue import report
from chasquimq.spark.queues.report import TaskReport, summary_of

QUEUE = ("spark", "enqueue", "--queue", "orders")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (QUEUE, "give what to read: --table"),
        ((*QUEUE, "--csv", "a.csv", "--table", "t"), "give one of --table and files"),
        ((*QUEUE, "--table", "t", "--max-rate", "0"), "must be a number above 0"),
        ((*QUEUE, "--table", "t", "--on-error", "stop"), "'stop' is not one of"),
        ((*QUEUE, "--table", "t", "--name", "a", "--name-column", "b"), "not both"),
        ((*QUEUE, "--table", "t"), "give --name-column or --name; a job without a name runs only"),
        ((*QUEUE, "--table", "t", "--name", " "), "and --allow-unnamed adds such jobs"),
        (("spark", "enqueue", "--queue", "a b", "--table", "t"), "queue name must be free of"),
        ((*QUEUE, "--table", "t", "--run-id", " "), "runId must be a text of 1 to 128 bytes"),
        (("spark", "enqueue", "--table", "t"), "missing option '--queue'"),
    ],
)
def test_a_line_that_cannot_be_meant_is_wrong_usage(capsys, args, words):
    code = main(args)

    assert code == 2
    assert words in " ".join(capsys.readouterr().err.split())


def test_a_file_that_is_not_there_is_told_at_once(capsys, tmp_path):
    code = main([*QUEUE, "--parquet", str(tmp_path / "gone")])

    assert code == 1
    assert "must be there, and is not" in capsys.readouterr().err


@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.parametrize(("conflicts", "code"), [(0, 0), (3, 1)])
def test_rows_whose_id_another_job_has_are_not_in_the_queue(capsys, as_json, conflicts, code):
    done = summary_of([TaskReport(rows=5, added=5 - conflicts, conflicts=conflicts)])

    assert report(done, "orders", {"on_error": "skip"}, as_json=as_json) == code

    sentence = "3 rows have the id of another job, which stays as it was"
    assert (sentence in capsys.readouterr().err) == bool(conflicts)
