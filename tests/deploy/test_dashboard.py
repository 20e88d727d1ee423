"""The dashboard asks only for what is exported, and every panel can be read."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path

import pytest

from deploy.exported import exported
from deploy.promql import LEGEND_LABEL, labels_of, matched_labels, parse, selectors

BOARD = json.loads((Path(__file__).parents[2] / "deploy/grafana/chasquimq.json").read_text())
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
TARGETS = [(panel["title"], target) for panel in PANELS for target in panel["targets"]]
VARIABLES = {variable["name"]: variable for variable in BOARD["templating"]["list"]}
GRID_COLUMNS = 24
# Old names of numbers that are shown under their names in base units.
TWINS = {"chasquimq_delayed_zset_depth", "chasquimq_promoter_oldest_pending_lag_ms"}
# Leadership is told by who acquired; whoever loses it is told by the next.
UNSHOWN = {"chasquimq_promoter_lock_lost_total", "chasquimq_scheduler_lock_lost_total"}

each_panel = pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
each_target = pytest.mark.parametrize(
    ("title", "target"), TARGETS, ids=[f"{title} {t['refId']}" for title, t in TARGETS]
)


@each_target
def test_a_target_asks_for_series_and_labels_that_are_exported(title, target):
    expr = parse(target["expr"])

    for selector in selectors(expr):
        if selector.name is not None:
            assert matched_labels(selector) <= exported()[selector.name]
    assert set(LEGEND_LABEL.findall(target["legendFormat"])) <= labels_of(expr, exported())


@each_target
def test_a_target_listens_to_the_variables(title, target):
    named = [selector.name for selector in selectors(parse(target["expr"]))]
    has = {label: any(label in exported()[name] for name in named) for label in ("queue", "name")}

    assert ("$queue" in target["expr"]) == has["queue"]
    assert ("$name" in target["expr"]) == has["name"]
    assert target["datasource"]["uid"] == "${datasource}"


def test_everything_that_is_exported_is_shown():
    shown = {s.name for _, target in TARGETS for s in selectors(parse(target["expr"]))}
    bare = {re.sub("_(bucket|count|sum)$", "", name) for name in exported()}

    assert bare - {re.sub("_(bucket|count|sum)$", "", name) for name in shown} == TWINS | UNSHOWN


@each_panel
def test_a_panel_says_what_it_shows_and_in_which_unit(panel):
    defaults = panel["fieldConfig"]["defaults"]

    assert panel["description"].endswith(".")
    assert defaults["unit"]
    assert defaults["thresholds"]["steps"][0]["value"] is None
    limits = [step["value"] for step in defaults["thresholds"]["steps"][1:]]
    assert limits == sorted(limits)


@each_panel
def test_seconds_are_shown_as_seconds(panel):
    names = {s.name for t in panel["targets"] for s in selectors(parse(t["expr"]))}
    is_time = any(re.search("_seconds(_bucket)?$", name) for name in names)

    assert panel["fieldConfig"]["defaults"]["unit"] == "s" or not is_time


def test_no_panel_lies_over_another():
    places = [(panel["title"], cells(panel["gridPos"])) for panel in BOARD["panels"]]

    overlaps = [(a, b) for (a, one), (b, other) in combinations(places, 2) if one & other]
    assert overlaps == []


def test_panels_fill_whole_lines_and_have_ids_of_their_own():
    taken = set().union(*(cells(panel["gridPos"]) for panel in BOARD["panels"]))
    depth = max(y for _, y in taken) + 1
    ids = [panel["id"] for panel in BOARD["panels"]]

    assert taken == {(x, y) for x in range(GRID_COLUMNS) for y in range(depth)}
    assert len(ids) == len(set(ids))


def test_the_board_can_be_imported_anywhere():
    assert list(VARIABLES) == ["datasource", "queue", "name"]
    assert VARIABLES["datasource"]["query"] == "prometheus"
    assert all(VARIABLES[name]["allValue"] == ".*" for name in ("queue", "name"))
    assert "__inputs" not in BOARD
    assert "id" not in BOARD


@pytest.mark.parametrize("name", ["queue", "name"])
def test_a_variable_lists_a_label_that_is_exported(name):
    query = VARIABLES[name]["query"]["query"]
    selector, label = re.fullmatch(r"label_values\((.+), (\w+)\)", query).groups()

    (asked,) = selectors(parse(selector))
    names = [asked.name] if asked.name else name_pattern(asked).split("|")
    assert all(label in exported()[one] for one in names)


def name_pattern(selector) -> str:
    (pattern,) = [m.value for m in selector.matchers.matchers if m.name == "__name__"]
    return pattern


def cells(place: dict[str, int]) -> set[tuple[int, int]]:
    return {
        (x, y)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    }
