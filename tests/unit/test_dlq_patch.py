"""Changes to the data of a dead job: where they lead, and where they do not fit."""

from __future__ import annotations

import click
import pytest

from chasquimq.cli.dlq.select import Patch, PatchType, patched
from chasquimq.errors import EditRefused

DATA = {"to": "ana", "items": [{"price": 1}, {"price": 2}], "a.b": {"x": 1}}


def patch(text: str) -> Patch:
    return PatchType().convert(text, None, None)


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("$.to=bob", {**DATA, "to": "bob"}),
        ("to=bob", {**DATA, "to": "bob"}),
        ('$.to="5"', {**DATA, "to": "5"}),
        ("$.to=5", {**DATA, "to": 5}),
        ("$.to=", {**DATA, "to": ""}),
        ("$.to=a=b", {**DATA, "to": "a=b"}),
        ("$.new=null", {**DATA, "new": None}),
        ("$.items[1].price=9", {**DATA, "items": [{"price": 1}, {"price": 9}]}),
        ("items[0]=true", {**DATA, "items": [True, {"price": 2}]}),
        ('$["a.b"].x=2', {**DATA, "a.b": {"x": 2}}),
        ('$={"all": "new"}', {"all": "new"}),
    ],
)
def test_a_value_is_put_where_its_path_leads(text, changed):
    assert patch(text)(DATA) == changed


def test_the_data_itself_stays_as_it_is():
    before = {"deep": {"list": [1]}}

    patch("$.deep.list[0]=2")(before)

    assert before == {"deep": {"list": [1]}}


def test_changes_are_made_in_their_order():
    assert patched({}, [patch('$.a={"b": 1}'), patch("$.a.b=2")]) == {"a": {"b": 2}}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("$.to.first=x", r"\$\.to must be an object, found str"),
        ("$.items.first=x", r"\$\.items must be an object, found list"),
        ("$.nobody.there=x", r"there is nothing at \$\.nobody"),
        ("$.items[2]=x", r"there is nothing at \$\.items\[2\]"),
        ("$.items[7].price=x", r"there is nothing at \$\.items\[7\]"),
        ("$[0]=x", r"\$ must be a list, found dict"),
    ],
)
def test_what_leads_nowhere_is_refused_with_its_place(text, why):
    with pytest.raises(EditRefused, match=why):
        patch(text)(DATA)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "=",
        "to",
        "$.to",
        "$to=x",
        "$.=x",
        "$.a[x]=1",
        "$.a[=1",
        "[0=1",
        '$["x\\q"]=1',
        "$.a=" + "[" * 100_000,
        "$.a=NaN",
    ],
)
def test_what_is_no_change_is_refused_with_an_example(text):
    with pytest.raises(click.BadParameter, match=r"write PATH=VALUE, such as \$\.to"):
        patch(text)
