"""The page of metrics says what the code does."""

import re
from pathlib import Path

import pytest

from chasquimq.telemetry import http, tracing
from chasquimq.telemetry import sink as port
from chasquimq.telemetry.families import FAMILIES, Family
from chasquimq.telemetry.sink import BATCHES, RECORD_METHODS
from chasquimq.telemetry.tally import NAMES_MAX, OTHER_NAME
from chasquimq.worker import hooks as run_spans

PAGE = (Path(__file__).parents[2] / "docs/reference/metrics.md").read_text()
METRIC = re.compile(
    r"^\| `(?P<name>chasquimq_\w+)` \| (?P<kind>\w+) \| (?P<labels>.*?) \| (?P<unit>.*?) "
    r"\| (?P<meaning>.*) \|$",
    re.MULTILINE,
)
RECORD = re.compile(
    r"^\| `(?P<record>[A-Z]\w+)` \| `(?P<method>\w+)` \| (?P<fields>.*?) \|", re.MULTILINE
)
QUOTED = re.compile(r"`([^`]+)`")


def row_of(family: Family) -> tuple[str, ...]:
    labels = ", ".join(f"`{label}`" for label in family.labels) or "none"
    return (family.name, family.kind, labels, family.unit or "0 or 1", family.help)


def test_every_metric_is_on_the_page_once_with_its_kind_labels_unit_and_meaning():
    assert sorted(METRIC.findall(PAGE)) == sorted(map(row_of, FAMILIES))


@pytest.mark.parametrize("row", [*RECORD.finditer(PAGE)], ids=lambda row: row["record"])
def test_every_record_on_the_page_has_its_fields(row):
    record = getattr(port, row["record"])

    assert QUOTED.findall(row["fields"]) == list(record.__struct_fields__)


def test_every_method_of_a_sink_is_on_the_page():
    singles = {row["method"] for row in RECORD.finditer(PAGE)}

    assert singles | BATCHES.keys() == set(RECORD_METHODS)
    assert all(f"`{batched}`" in PAGE for batched in BATCHES)


def test_a_name_says_its_unit_and_its_kind():
    totals = {family.name for family in FAMILIES if family.name.endswith("_total")}
    seconds = {family.name for family in FAMILIES if family.name.endswith("_seconds")}

    assert totals == {family.name for family in FAMILIES if family.kind == "counter"}
    assert seconds == {family.name for family in FAMILIES if family.unit == "seconds"}


def test_bounds_rise_and_only_histograms_have_them():
    assert [f.name for f in FAMILIES if bool(f.bounds) != (f.kind == "histogram")] == []
    assert [f.name for f in FAMILIES if list(f.bounds) != sorted(set(f.bounds))] == []


def test_the_limit_of_names_is_the_one_on_the_page():
    assert f"The first {NAMES_MAX:,} names" in PAGE
    assert f"share the name `{OTHER_NAME}`" in PAGE


def test_the_paths_and_attributes_on_the_page_are_those_of_the_code():
    paths = re.findall(r"^\| `(/\w+)` \|", PAGE, re.MULTILINE)
    attributes = re.findall(
        r"`((?:messaging|chasquimq|error)\.[a-z_.]+)`", PAGE.split("## Spans")[1]
    )

    assert [path for path in paths if path not in Path(http.__file__).read_text()] == []
    source = Path(tracing.__file__).read_text() + Path(run_spans.__file__).read_text()
    assert len(attributes) > 10
    assert [name for name in attributes if f'"{name}"' not in source] == []
