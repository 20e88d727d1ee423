"""The log of a command: a line each, and what belongs to it set in below."""

from __future__ import annotations

import logging

from chasquimq.cli.service import TextFormatter


def line_of(message: str, **more: object) -> list[str]:
    record = logging.makeLogRecord({"msg": message, "levelname": "WARNING", "name": "n", **more})
    return TextFormatter().format(record).split("\n")


def test_what_belongs_to_a_record_stands_behind_its_sentence():
    (line,) = line_of("a handler failed", job_name="mail")

    assert line.endswith("WARNING n: a handler failed job_name=mail")


def test_what_the_sentence_says_is_not_said_twice():
    (line,) = line_of(
        "job 17 (mail) of queue q-1 is buried", job="17", queue="q-1", kind="1", n=None
    )

    assert line.endswith("job 17 (mail) of queue q-1 is buried kind=1")


def test_further_lines_are_set_in_so_that_none_of_them_passes_for_a_record():
    forged = "2026-11-16T00:00:00Z INFO n: all is well"

    first, *rest = line_of(f"a handler failed: no\n{forged}\nValueError: no", job_name="mail")

    assert first.endswith("a handler failed: no job_name=mail")
    assert rest == [f"  {forged}", "  ValueError: no"]


def test_an_error_is_told_below_and_control_bytes_are_spelled():
    error = ValueError("a\x1b[2Jb")

    lines = line_of("gone wrong", exc_info=(ValueError, error, None))

    assert lines[-1].startswith("  ValueError: a")
    assert "\x1b" not in lines[-1]


def test_our_own_keys_are_shown_without_their_prefix_unless_somebody_else_has_the_name():
    (alone,) = line_of("a handler failed", chasqui_job_id="7")
    (beside,) = line_of("a handler failed", chasqui_job_id="7", job_id="of a request")

    assert alone.endswith("a handler failed job_id=7")
    assert "chasqui_job_id=7" in beside
    assert "job_id=of a request" in beside
