"""The public surface changes on purpose: each change of it is a changed file that is looked over."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from surface import catalogue
from surface.catalogue import LISTS, RENEW, difference
from surface.python_api import PUBLIC, names_of

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", LISTS)
def test_the_public_surface_is_as_it_was_frozen(name):
    if changed := difference(name):
        pytest.fail(
            f"the public surface changed ({name}). If that is meant, run `{RENEW}`, and say it in "
            f"CHANGELOG.md.\n{changed}",
            pytrace=False,
        )


def test_what_changed_is_shown_line_by_line(tmp_path, monkeypatch):
    monkeypatch.setattr(catalogue, "FROZEN", tmp_path)
    first, *rest = catalogue.text_of("keys").splitlines(keepends=True)
    (tmp_path / "keys.txt").write_text("".join(["{chasqui:<queue>}:gone\n", *rest]))

    changed = difference("keys")

    assert "-{chasqui:<queue>}:gone" in changed
    assert f"+{first.rstrip()}" in changed


def test_no_file_is_frozen_that_nobody_renews():
    assert {path.stem for path in catalogue.FROZEN.iterdir()} == set(LISTS)


def test_every_name_that_an_example_or_a_page_imports_is_public():
    imported = set(imports_of_examples()) | set(imports_on_pages())

    assert ("chasquimq", "Queue") in imported
    assert {one for one in imported if not is_public(*one)} == set()


def is_public(module: str, name: str) -> bool:
    return module in PUBLIC and (name in names_of(module) or f"{module}.{name}" in PUBLIC)


def imports_of_examples() -> Iterator[tuple[str, str]]:
    for path in (ROOT / "examples").rglob("*.py"):
        yield from own_imports(path.read_text())


def imports_on_pages() -> Iterator[tuple[str, str]]:
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        for code in FENCE.findall(page.read_text()):
            yield from own_imports(code)


def own_imports(code: str) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(code)):
        module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
        if module.partition(".")[0] == "chasquimq":
            assert isinstance(node, ast.ImportFrom)
            yield from ((module, one.name) for one in node.names)
