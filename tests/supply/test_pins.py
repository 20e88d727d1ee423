"""What is installed is pinned by version and hash, agrees with pyproject.toml, and is complete."""

from __future__ import annotations

import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from supply.pins import FILES, ROOT, Pin, lines_of, options_of, pins_in, pins_with

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
EXTRAS = PROJECT["optional-dependencies"]
GROUPS = PYPROJECT["dependency-groups"]
OWN = canonicalize_name(PROJECT["name"])
# The file that holds what an extra or a group asks for.
HELD_IN = {
    "dev": "test.txt",
    "embedded": "run.txt",
    "fast": "worker.txt",
    "otel": "test.txt",
    "prometheus": "worker.txt",
    "report": "spark.txt",
    "spark": "spark.txt",
    "sql": "sql.txt",
}
ALL_PINS = [(name, pin) for name in FILES for pin in pins_in(name)]


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import stamps

    return stamps


def asked_for(extra: str) -> Iterator[Requirement]:
    """What an extra asks for, through the extras of ours that it names."""
    for one in map(Requirement, EXTRAS[extra]):
        if canonicalize_name(one.name) == OWN:
            for inner in sorted(one.extras):
                yield from asked_for(inner)
        else:
            yield one


def unmet(wanted: Iterator[Requirement], pins: list[Pin]) -> list[str]:
    """Those that no pin meets."""
    versions = defaultdict(list)
    for pin in pins:
        versions[pin.name].append(pin.version)
    return [
        str(one)
        for one in wanted
        if not versions[canonicalize_name(one.name)]
        or not all(map(one.specifier.contains, versions[canonicalize_name(one.name)]))
    ]


@pytest.mark.parametrize("name", FILES)
def test_every_pin_has_the_hashes_of_its_files(name: str):
    pins = pins_in(name)

    assert pins
    assert [str(pin.requirement) for pin in pins if not pin.hashes] == []


@pytest.mark.parametrize("name", FILES)
def test_every_pin_is_one_exact_version(name: str):
    operators = {spec.operator for pin in pins_in(name) for spec in pin.requirement.specifier}

    assert operators == {"=="}
    assert not any("*" in pin.version for pin in pins_in(name))


@pytest.mark.parametrize("name", FILES)
def test_pins_name_no_place_to_fetch_them_from(name: str):
    said = "\n".join(lines_of(name))

    assert re.findall(r"://|--(?:extra-)?index|--find-links|@ |(?:^|\s)[./~]\S*", said) == []


@pytest.mark.parametrize("name", FILES)
def test_only_wheels_are_taken_but_for_the_one_package_that_has_none(name: str):
    options = options_of(name)

    assert options[0] == "--only-binary :all:"
    assert set(options[1:]) <= {"--no-binary pyspark"}
    assert ("--no-binary pyspark" in options) == ("pyspark" in {p.name for p in pins_with(name)})


def test_a_package_has_the_same_versions_and_hashes_in_every_file():
    found = defaultdict(lambda: defaultdict(set))
    for name, pin in ALL_PINS:
        found[pin.name][name].add((pin.version, pin.hashes))

    assert [
        package for package, files in found.items() if len(set(map(frozenset, files.values()))) > 1
    ] == []


def test_a_file_repeats_no_pin_of_the_files_that_it_extends():
    repeated = {}
    for name in FILES:
        inherited = {str(p.requirement) for p in pins_with(name)[: -len(pins_in(name))]}
        repeated[name] = [p.name for p in pins_in(name) if str(p.requirement) in inherited]

    assert {name: found for name, found in repeated.items() if found} == {}


def test_every_dependency_is_pinned_within_its_range():
    assert unmet(map(Requirement, PROJECT["dependencies"]), pins_in("core.txt")) == []


@pytest.mark.parametrize("extra", sorted(EXTRAS))
def test_every_extra_is_pinned_within_its_range(extra: str):
    assert unmet(asked_for(extra), pins_with(HELD_IN[extra])) == []


@pytest.mark.parametrize("group", sorted(GROUPS))
def test_every_group_is_pinned_within_its_range(group: str):
    assert unmet(map(Requirement, GROUPS[group]), pins_with(f"{group}.txt")) == []


def test_what_builds_the_package_is_what_is_pinned():
    assert PYPROJECT["build-system"]["requires"] == GROUPS["build"]


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13", "3.14"])
@pytest.mark.parametrize(
    "name",
    ["core.txt", "worker.txt", "run.txt", "sql.txt", "test.txt", "docs.txt", "matrix.txt"],
)
def test_all_that_a_pinned_package_requires_is_pinned_beside_it(name: str, python: str):
    there = {"python_version": python, "python_full_version": f"{python}.9", "extra": ""}
    pins = {pin.name: pin for pin in pins_with(name) if pin.applies_to(there)}

    assert {pin: missing for pin in pins if (missing := unpinned(pin, there, pins))} == {}


def unpinned(package: str, there: dict[str, str], pins: dict[str, Pin]) -> list[str]:
    """What an installed package requires and no pin holds for such a Python."""
    try:
        wanted = map(Requirement, requires(package) or [])
    except PackageNotFoundError:
        return []  # for a Python that is not this one
    here = [one for one in wanted if one.marker is None or one.marker.evaluate(there)]
    return [str(one) for one in here if canonicalize_name(one.name) not in pins]


def test_every_file_is_written_by_make_lock_and_installed_by_a_level_or_the_matrix(
    tools: ModuleType,
):
    import lock
    import matrix

    levels = [*tools.PINS, tools.RELEASE]

    assert sorted(lock.FILES) == FILES
    installed = {name for level in levels for name in tools.pins_of(level)}
    assert sorted({*installed, matrix.PINS}) == FILES


def test_a_level_names_every_file_that_it_reads(tools: ModuleType):
    for level in tools.PINS:
        named = tools.pins_of(level)
        read = {other for name in named for other in extended(name)}
        assert read <= set(named)


def extended(name: str) -> list[str]:
    below = [line.split()[1] for line in lines_of(name) if line.startswith("-r ")]
    return [*(other for one in below for other in extended(one)), *below]
