"""The page about the tables says what the code says: every table, column, type and merge."""

import re
from pathlib import Path

from chasquimq.spark.lake.ledger import DROPPED, SEQUENCE
from chasquimq.spark.lake.tables import TABLES
from chasquimq.spark.schema import UNREADABLE
from chasquimq.spark.sources.planning import RESET, TRIMMED

PAGE = Path(__file__).parents[2] / "docs/reference/tables.md"
SECTION = re.compile(r"^## (?P<name>\w+_\w+)\n(?P<text>.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
ROW = re.compile(
    r"^\| `(?P<name>\w+)` \| `(?P<kind>[^`]+)` \| (?:`(?P<merge>[^`]+)` )?\| (?P<meaning>\S.*) \|$",
    re.MULTILINE,
)


def test_the_page_lists_every_table_in_order():
    assert list(written()) == list(TABLES)


def test_the_page_lists_every_column_with_its_type_and_merge():
    in_code = {
        name: [(column.name, column.kind, column.merge) for column in table.columns]
        for name, table in TABLES.items()
    }

    assert written() == in_code


def test_the_page_lists_every_cause_of_a_loss():
    (line,) = re.findall(r"^\| `cause` .*$", PAGE.read_text(), re.MULTILINE)

    told = re.findall(r"`(\w+)`(?=:| \|$)", line)

    assert set(told) == {SEQUENCE, DROPPED, TRIMMED, RESET, UNREADABLE}


def written() -> dict[str, list[tuple[str, str, str | None]]]:
    return {
        section["name"]: [
            (row["name"], row["kind"], row["merge"]) for row in ROW.finditer(section["text"])
        ]
        for section in SECTION.finditer(PAGE.read_text())
    }
