"""A break fits exactly one place, or says that it does not."""

from __future__ import annotations

import pytest

from mutants.__main__ import _ROOT, broken
from mutants.catalogue import MUTANTS

MUTANT = MUTANTS[0]


def test_a_mutant_breaks_its_place_and_nothing_else():
    assert broken(MUTANT, f"head\n{MUTANT.before}\ntail") == f"head\n{MUTANT.after}\ntail"


@pytest.mark.parametrize("text", ["something else", MUTANT.before * 2], ids=["gone", "twice"])
def test_a_place_that_is_not_there_once_is_told_by_name(text):
    with pytest.raises(SystemExit, match=f"{MUTANT.name}: its place must be once"):
        broken(MUTANT, text)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda one: one.name)
def test_every_mutant_has_its_place_in_the_tree(mutant):
    assert broken(mutant, (_ROOT / mutant.path).read_text()) != ""


def test_the_page_names_how_many_there_are():
    page = (_ROOT / "docs/explanation/how-it-is-tested.md").read_text()

    assert f"breaks a copy of the code in {len(MUTANTS)} places" in page


def test_no_two_mutants_have_the_same_name():
    names = [mutant.name for mutant in MUTANTS]

    assert len(set(names)) == len(names)
