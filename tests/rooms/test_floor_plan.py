"""The tree keeps below the ceilings of its floor plan; `make count` shows what they count."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.count_modules import FloorPlan, quantile

from support.ceilings import LONG_FILES, check


@pytest.fixture(scope="module")
def plan() -> FloorPlan:
    return FloorPlan()


def test_the_package_has_few_modules(plan):
    check("modules without spark", len(plan.without_spark))


def test_few_modules_serve_a_single_neighbour(plan):
    pairs = [f"{name} <- {importer}" for name, importer in plan.one_importer.items()]

    check("modules with one importer, in the same room", pairs)


def test_a_class_name_has_one_meaning(plan):
    shared = [f"{name}: {', '.join(homes)}" for name, homes in plan.class_homes.items()]

    check("class names in more than one module", shared)


def test_functions_are_short(plan):
    check("median length of a function", quantile(plan.function_lines, 0.5))
    check("p90 of the lengths of functions", quantile(plan.function_lines, 0.9))


def test_files_are_short(plan):
    others = [module.lines for module in plan.modules if module.name not in LONG_FILES]
    long = [module.lines for module in plan.modules if module.name in LONG_FILES]

    check("lines of a file", max(others))
    check("lines of a file in LONG_FILES", max(long, default=0))


def test_a_room_holds_few_modules(plan):
    check("modules in a room", max(plan.rooms.values()))


# How it is counted, on a small tree.


@pytest.fixture
def made(tmp_path):
    def make(**texts: str) -> FloorPlan:
        for name, text in texts.items():
            path = Path(tmp_path, "chasquimq", *name.split("__")).with_suffix(".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return FloorPlan(tmp_path)

    return make


PORT = "class Sink(Protocol):\n    def end(self) -> None: ...\n"


def test_a_module_with_one_importer_in_its_room_is_found(made):
    plan = made(
        a__one="from chasquimq.a import two\n", a__two="", a__three="", a__four="",
        b__five="from chasquimq.a.three import x\nfrom chasquimq.a.four import x\n",
        b__six="import chasquimq.a.four\n",
    )  # fmt: skip

    assert plan.one_importer == {"chasquimq.a.two": "chasquimq.a.one"}


def test_ports_programs_and_what_users_import_stand_alone(made):
    plan = made(
        __init__="TABLE = {'x': 'chasquimq.a.user'}\n",
        a__one="from chasquimq.a import port, program, user\n", a__port=PORT, a__user="",
        a__program="if __name__ == '__main__':\n    pass\n",
    )  # fmt: skip

    assert plan.one_importer == {}


def test_a_name_in_a_string_is_an_import(made):
    plan = made(a__one="COMMANDS = ['chasquimq.a.two:run']\n", a__two="")

    assert plan.importers["chasquimq.a.two"] == {"chasquimq.a.one"}


def test_a_class_of_two_modules_is_found_unless_it_is_private(made):
    plan = made(one="class A: ...\nclass _B: ...\n", two="class A: ...\nclass _B: ...\n")

    assert plan.class_homes == {"A": ["chasquimq.one", "chasquimq.two"]}
