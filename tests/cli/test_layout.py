"""Text and tables are made to fit a terminal: words first, ids whole, the rest as there is room."""

from __future__ import annotations

import os

import pytest

from chasquimq.cli.output import tables as cells
from chasquimq.cli.output.render import emit_table
from chasquimq.cli.output.tables import (
    TableColumn,
    cell_width,
    cut,
    fit,
    records,
    terminal_columns,
    wrapped,
)

ID = TableColumn("id", ["1794798054930-0"], is_text=False)
NAME = TableColumn("name", ["charge", "mail"], is_text=True)
WHY = TableColumn("why", ["no answer from the bank within five seconds"], is_text=True)
SIZE = TableColumn("payload bytes", ["44"], is_text=False)


@pytest.mark.parametrize(
    ("text", "columns"),
    [("", 0), ("mail", 4), ("報告", 4), ("e\u0301", 1), ("🚀!", 3), ("a\u200db", 2)],
)
def test_a_text_is_as_wide_as_a_terminal_shows_it(text, columns):
    assert cell_width(text) == columns


@pytest.mark.parametrize(
    ("text", "shown"), [("mail", "mail"), ("mails", "mai…"), ("報告書", "報…"), ("", "")]
)
def test_what_is_too_wide_ends_in_an_ellipsis(text, shown):
    assert cut(text, 4) == shown


def test_lines_are_broken_at_spaces_and_hang_below_the_first():
    assert wrapped("one two three four", 9, indent="  ") == ["one two", "  three", "  four"]


def test_a_word_that_is_wider_than_a_line_has_one_of_its_own():
    assert wrapped("see https://example.com now", 12) == [
        "see", "    https://example.com", "    now",
    ]  # fmt: skip


def test_words_that_need_not_be_whole_are_cut():
    lines = wrapped("id=0123456789 why=nobody-knows", 12, is_whole=lambda word: word[:3] == "id=")

    assert lines == ["id=0123456789", "    why=nob…"]


def test_nothing_to_say_is_one_empty_line():
    assert wrapped("", 10) == [""]


def test_where_there_is_room_every_column_has_what_it_needs():
    layout = fit([ID, NAME, WHY, SIZE], ["payload bytes"], 200)

    assert layout.widths == [15, 6, 43, 13]
    assert layout.left_out == []


def test_texts_shrink_first_and_ids_not_at_all():
    layout = fit([ID, NAME, WHY, SIZE], ["payload bytes"], 60)

    assert layout.widths == [15, 6, 19, 7]
    assert sum(layout.widths) + 4 * 3 + 1 == 60


def test_then_optional_columns_leave_in_their_order():
    layout = fit([ID, NAME, WHY, SIZE], ["payload bytes", "name"], 45)

    assert layout.left_out == ["payload bytes"]
    assert [column.title for column in layout.columns] == ["id", "name", "why"]


def test_then_texts_are_cut():
    assert fit([ID, WHY], [], 30).widths == [15, 8]


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
def test_an_id_is_never_broken_and_a_row_becomes_a_record_instead(columns):
    long = TableColumn("id", ["x" * 256], is_text=False)

    layout = fit([long, WHY, SIZE], ["payload bytes"], columns)
    lines = records(layout.columns, columns)

    assert (layout.widths, layout.left_out) == (None, [])
    assert [line.split()[-1] for line in lines if "x" in line] == ["x" * 256]
    assert max(len(line) for line in lines if "x" not in line) <= columns


def test_a_record_has_a_line_for_each_cell_and_a_blank_one_before_the_next():
    two = [
        TableColumn("id", ["1-0", "2-0"], False),
        TableColumn("why", ["no answer from the whole bank", "-"], True),
    ]

    assert records(two, 28) == [
        "id   1-0", "why  no answer from the", "     whole bank", "", "id   2-0", "why  -",
    ]  # fmt: skip


def test_rows_without_a_header_keep_their_names_before_them():
    facts = [TableColumn("", ["job id", "name"], False), TableColumn("", ["1-0", "mail"], False)]

    assert records(facts, 40) == ["job id  1-0", "name    mail"]


def test_what_is_in_a_table_matters_more_than_its_titles():
    titled = TableColumn("a title of many short words", ["1"], is_text=False)

    layout = fit([titled, WHY], [], 60)

    assert layout.widths == [10, 43]


@pytest.mark.parametrize(("given", "columns"), [("120", 120), ("3", 20), ("0", 80), ("wide", 80)])
def test_columns_of_the_environment_win_where_they_are_a_number(monkeypatch, given, columns):
    def nobody_knows(_descriptor: int) -> os.terminal_size:
        raise OSError

    monkeypatch.setattr(cells.os, "get_terminal_size", nobody_knows)
    monkeypatch.setenv("COLUMNS", given)

    assert terminal_columns() == columns


def test_wide_characters_are_aligned_in_a_pipe(capsys):
    emit_table([{"name": "報告", "count": 1}, {"name": "mail", "count": 2}])

    assert capsys.readouterr().out == "name  count\n報告  1\nmail  2\n"
