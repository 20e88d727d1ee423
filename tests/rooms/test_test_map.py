"""The page of tests names tests that exist, for every promise and every hazard."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/explanation/how-it-is-tested.md").read_text()
GUARANTEES = (ROOT / "docs/explanation/guarantees.md").read_text()
NAMED = re.compile(r"`(?P<path>tests/[\w/]+\.py)::(?P<name>\w+)`")
ROW = re.compile(r"^\| (?P<number>[PH]\d+) \|(?P<cells>.*)\|$", re.MULTILINE)
NUMBERS = [f"P{at}" for at in range(1, 26)] + [f"H{at}" for at in range(1, 38)]
NOT_BUILT = "not built yet"


@cache
def names_in(path: str) -> frozenset[str]:
    """The names of all functions in a file, also of those in classes."""
    if not (ROOT / path).is_file():
        return frozenset()
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    found = ast.walk(ast.parse((ROOT / path).read_text()))
    return frozenset(one.name for one in found if isinstance(one, functions))


@cache
def turns_in(path: str) -> frozenset[str]:
    """The names of the tests of a file that run on one kind of server each."""
    tree = ast.parse((ROOT / path).read_text())
    functions = [
        one for one in tree.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    marks = [one for one in tree.body if isinstance(one, ast.Assign) and _is_mark(one)]
    if any("takes_turns" in ast.unparse(one.value) for one in marks):
        return frozenset(one.name for one in functions)
    return frozenset(
        one.name
        for one in functions
        if any("takes_turns" in ast.unparse(mark) for mark in one.decorator_list)
    )


def _is_mark(one: ast.Assign) -> bool:
    return ast.unparse(one.targets[0]) == "pytestmark"


def test_every_promise_and_every_hazard_has_its_row_in_turn():
    assert [row["number"] for row in ROW.finditer(PAGE)] == NUMBERS


def test_the_page_of_guarantees_has_the_same_promises():
    promised = [row["number"] for row in ROW.finditer(GUARANTEES)]

    assert promised == [number for number in NUMBERS if number.startswith("P")]


@pytest.mark.parametrize("row", list(ROW.finditer(PAGE)), ids=lambda row: row["number"])
def test_a_row_names_a_test_or_says_that_nothing_is_built(row):
    assert bool(NAMED.search(row["cells"])) is not (NOT_BUILT in row["cells"])


@pytest.mark.parametrize(
    ("path", "name"), sorted({(one["path"], one["name"]) for one in NAMED.finditer(PAGE)})
)
def test_a_test_that_is_named_exists(path, name):
    assert name.startswith("test_")
    assert name in names_in(path)


def test_the_page_names_the_proofs_that_take_turns():
    proofs = {(one["path"], one["name"]) for one in NAMED.finditer(PAGE)}
    taking_turns = {name for path, name in proofs if name in turns_in(path)}

    assert set(re.findall(r"`(test_\w+)`", PAGE.partition("## Promises")[0])) == taking_turns


def test_no_test_is_named_in_a_way_that_nobody_checks():
    assert PAGE.count("::") == len(NAMED.findall(PAGE))
