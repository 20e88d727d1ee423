"""Modules and names of a made-up package move, and everything that mentions them follows."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "move_modules.py"

MAPPING = """
package = "shop"
[modules]
"goods.basket" = ["goods.item", "goods.cart"]
"till" = ["payment.till"]
[docstrings]
"goods.basket" = "Holds what is bought."
[names]
"goods.item:Thing" = "Item"
"""
FILES = {
    "src/shop/__init__.py": '"""A shop."""\n',
    "src/shop/goods/__init__.py": '"""Goods."""\n',
    "src/shop/goods/item.py": '''"""One thing."""

from __future__ import annotations

LIMIT = 3


# The comment of the class.
class Thing:
    """Is bought."""


def named(Thing: int) -> int:
    return Thing
''',
    "src/shop/goods/cart.py": '''"""Many things."""

from __future__ import annotations

import json

from shop.goods.item import Thing as One
from shop.goods.item import Thing

LIMIT = 3


def filled() -> list[Thing]:
    return [One(), Thing()][: json.loads("2")]
''',
    "src/shop/payment/__init__.py": '"""Payment."""\n',
    "src/shop/payment/till.py": '''"""Takes money."""


def take() -> str:
    from shop.goods.cart import filled
    from shop.goods.item import LIMIT, Thing

    return f"ж {len(filled())} {LIMIT} {Thing.__name__}"
''',
    "tests/test_till.py": r'''"""A test with programs in strings."""
from shop.goods.item import Thing
from shop.payment import till

PROGRAM = """
from shop.payment.till import take
from shop.goods.item import (
    LIMIT,
    Thing,
)
print(take(), LIMIT, Thing.__name__)
"""
LINE = "import sys\nfrom shop.goods.item import Thing\nprint(Thing.__name__)"
TARGET = "shop.goods.item.Thing"
MODULE = "shop.payment.till"
PLACE = "src/shop/goods/cart.py"
assert Thing.__name__ == "Item"
assert till.take() == "ж 2 3 Item"
''',
    "docs/page.md": """A `shop.goods.item.Thing` from shop.payment.till lies in `goods/cart.py`. One Thing.

```python
from shop.goods.item import Thing

Thing()
```
""",
}


@pytest.fixture
def tree(tmp_path):
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def move(tree, mapping: str, *options: str) -> tuple[int, str]:
    """Run the tool; its exit code, and what it complains about."""
    path = tree / "mapping.toml"
    path.write_text(mapping)
    call = [sys.executable, TOOL, path, "--root", tree, *options]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def ran(tree, program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tree / "src",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def moved(tree):
    assert move(tree, MAPPING, "--write") == (0, "")
    return tree


def test_two_modules_become_one_that_works(moved):
    text = (moved / "src/shop/goods/basket.py").read_text()

    assert text.startswith('"""Holds what is bought."""\n\nfrom __future__')
    assert text.count("LIMIT = 3") == text.count("from __future__") == 1
    assert "# The comment of the class.\nclass Item:" in text
    assert "def named(Thing: int) -> int:\n    return Thing\n" in text
    assert "return [Item(), Item()]" in text
    assert not (moved / "src/shop/goods/cart.py").exists()
    assert ran(moved, "from shop.till import take; print(take())") == "ж 2 3 Item"


def test_imports_strings_and_programs_inside_strings_follow(moved, monkeypatch):
    monkeypatch.syspath_prepend(str(moved / "src"))
    known = runpy.run_path(str(moved / "tests/test_till.py"))

    assert known["TARGET"] == "shop.goods.basket.Item"
    assert known["MODULE"] == "shop.till"
    assert known["PLACE"] == "src/shop/goods/basket.py"
    assert ran(moved, known["PROGRAM"]) == "ж 2 3 Item 3 Item"
    assert ran(moved, known["LINE"]) == "Item"


def test_pages_follow_and_words_of_prose_stay(moved):
    assert (moved / "docs/page.md").read_text() == (
        "A `shop.goods.basket.Item` from shop.till lies in `goods/basket.py`. One Thing.\n\n"
        "```python\nfrom shop.goods.basket import Item\n\nItem()\n```\n"
    )


def test_without_write_nothing_changes(tree):
    assert move(tree, MAPPING) == (0, "")

    assert {name: (tree / name).read_text() for name in FILES} == FILES


def test_names_that_would_clash_are_told_and_nothing_is_written(tree):
    (tree / "src/shop/goods/cart.py").write_text("LIMIT = 4\n")

    told = "shop.goods.basket: LIMIT differs in shop.goods.item, shop.goods.cart\n"
    assert move(tree, MAPPING, "--write") == (1, told)
    assert (tree / "src/shop/goods/item.py").exists()


def test_a_module_that_is_not_there_is_told(tree):
    mapping = 'package = "shop"\n[modules]\n"a" = ["b"]\n'

    assert move(tree, mapping, "--write") == (1, "not there: shop.b\n")
