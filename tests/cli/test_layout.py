"""Text and tables are made to fit a terminal: words first, ids whole, the rest as there is room."""

from __future__ import annotations

import os
import re
import sys

import pytest
from rich.console import Console
from rich.table import Table

from chasquimq.cli.output import tables
from chasquimq.cli.output.render import emit_pairs, emit_table
from chasquimq.cli.output.tables import Shape, cut, make_table, padded, terminal_columns, wrapped

ROW = {
    "id": "1794798054930-0",
    "name": "charge mail",
    "why": "no answer from the bank within five seconds",
    "payload bytes": "44",
}
SHAPE = Shape(text=("name", "why"), optional=("payload bytes", "name"))


def drawn(row: dict[str, str], columns: int, shape: Shape = SHAPE) -> tuple[list[str], list[str]]:
    """The lines of a table of one row, and the columns that found no room."""
    return all_drawn([row], columns, shape)


def all_drawn(
    rows: list[dict[str, str]], columns: int, shape: Shape = SHAPE
) -> tuple[list[str], list[str]]:
    table, left_out = make_table(
        list(rows[0]), [list(row.values()) for row in rows], columns, shape
    )
    console = Console(width=columns, color_system=None)
    with console.capture() as shown:
        console.print(table, soft_wrap=not isinstance(table, Table))
    return shown.get().splitlines(), left_out


def words(lines: list[str]) -> str:
    return " ".join(re.sub("[┌┬┐└┴┘╞╪╡═─│┆]", " ", " ".join(lines)).split())


@pytest.mark.parametrize(
    ("text", "shown"),
    [("", "|"), ("mail", "mail|"), ("報告", "報告|"), ("e\u0301", "e\u0301   |"), ("🚀!", "🚀! |")],
)
def test_a_text_is_as_wide_as_a_terminal_shows_it(text, shown):
    assert padded(text, 4 if text else 0) + "|" == shown


@pytest.mark.parametrize(
    ("text", "shown"), [("mail", "mail"), ("mails", "mai…"), ("報告書", "報 …"), ("", "")]
)
def test_what_is_too_wide_ends_in_an_ellipsis(text, shown):
    assert cut(text, 4) == shown


def test_lines_are_broken_at_spaces_and_hang_below_the_first():
    assert wrapped("one two three four", 9, indent="  ") == ["one two", "  three", "  four"]


def test_a_word_that_is_wider_than_a_line_has_one_of_its_own():
    assert wrapped("see https://example.com now", 12) == [
        "see", "    https://example.com", "    now",
    ]  # fmt: skip


def test_nothing_to_say_is_one_empty_line():
    assert wrapped("", 10) == [""]


def test_where_there_is_room_every_column_has_what_it_needs():
    lines, left_out = drawn(ROW, 200)

    assert len(lines) == 5
    assert words(lines[1:2]) == "id name why payload bytes"
    assert words(lines[3:4]) == " ".join(ROW.values())
    assert left_out == []


def test_a_table_is_no_wider_than_what_is_in_it():
    assert {len(line) for line in drawn(ROW, 200)[0]} == {15 + 11 + 43 + 13 + 4 * 3 + 1}


@pytest.mark.parametrize("columns", [60, 66, 72])
def test_texts_and_titles_shrink_first_and_ids_not_at_all(columns):
    lines, left_out = drawn(ROW, columns)

    assert {len(line) for line in lines} == {columns}
    assert ROW["id"] in words(lines)
    assert set(" ".join(ROW.values()).split()) <= set(words(lines).split())
    assert left_out == []


def test_then_optional_columns_leave_in_their_order():
    lines, left_out = drawn(ROW, 42)

    assert left_out == ["payload bytes"]
    assert "bytes" not in words(lines)
    assert ROW["id"] in words(lines)


def test_then_words_of_texts_are_cut():
    row = {"id": ROW["id"], "why": "https://example.com/and/so/on never answered"}
    lines, left_out = drawn(row, 30)

    assert max(map(len, lines)) <= 30
    assert "…" in words(lines)
    assert left_out == []


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
def test_an_id_is_never_broken_and_a_row_becomes_a_record_instead(columns):
    lines, left_out = drawn(ROW | {"id": "x" * 256}, columns)

    assert left_out == []
    assert [line.split()[-1] for line in lines if "x" in line] == ["x" * 256]
    assert max(len(line) for line in lines if "x" not in line) <= columns


def test_a_record_has_a_line_for_each_cell_and_a_blank_one_before_the_next():
    first = {"id": "1" * 24 + "-0", "why": "no answer from the whole bank"}
    lines, _ = all_drawn([first, {"id": "2-0", "why": "-"}], 28)

    assert lines == [
        f"id   {first['id']}", "why  no answer from the", "     whole bank", "", "id   2-0",
        "why  -",
    ]  # fmt: skip


def test_rows_without_a_header_keep_their_names_before_them():
    rows = [{"name": "job id", "value": "1" * 40}, {"name": "name", "value": "mail"}]

    lines, _ = all_drawn(rows, 40, Shape(has_header=False))

    assert lines == [f"job id  {'1' * 40}", "name    mail"]


def test_numbers_stand_at_the_right_on_a_terminal_and_in_a_pipe(capsys):
    rows = [{"name": "mail", "jobs": "1,200"}, {"name": "charge", "jobs": "7"}]
    lines, _ = all_drawn(rows, 40, Shape(right=("jobs",)))
    emit_table(rows, right=("jobs",))

    assert [line[-8:] for line in lines if "│" in line] == ["  jobs │", " 1,200 │", "     7 │"]
    assert capsys.readouterr().out == "name     jobs\nmail    1,200\ncharge      7\n"


def test_pairs_stand_below_each_other_and_wrap_on_a_terminal(capsys, monkeypatch):
    pairs = [("read", "12 attempts of all that there were"), ("page", "report.html")]
    emit_pairs(pairs, indent="  ")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "30")
    emit_pairs(pairs, indent="  ")

    assert capsys.readouterr().out == (
        "  read  12 attempts of all that there were\n  page  report.html\n"
        "  read  12 attempts of all\n        that there were\n  page  report.html\n"
    )


def test_square_brackets_in_data_are_data():
    lines, _ = drawn({"id": "1-0", "name": "[red]mail[/red]"}, 80)

    assert words(lines) == "id name 1-0 [red]mail[/red]"


@pytest.mark.parametrize(("given", "columns"), [("120", 120), ("3", 20), ("0", 80), ("wide", 80)])
def test_columns_of_the_environment_win_where_they_are_a_number(monkeypatch, given, columns):
    def nobody_knows(_descriptor: int) -> os.terminal_size:
        raise OSError

    monkeypatch.setattr(tables.os, "get_terminal_size", nobody_knows)
    monkeypatch.setenv("COLUMNS", given)

    assert terminal_columns() == columns


def test_wide_characters_are_aligned_in_a_pipe(capsys):
    emit_table([{"name": "報告", "count": 1}, {"name": "mail", "count": 2}])

    assert capsys.readouterr().out == "name  count\n報告  1\nmail  2\n"
