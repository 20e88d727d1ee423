"""Counts modules, their sizes, their importers and their names.

`make count` prints the figures; tests/rooms/test_floor_plan.py holds them below its ceilings.

- A module is a `.py` file of the package. "Without spark" leaves out what lies in a folder `spark`.
- A room is a folder of the package. It holds the modules that lie in it, not those of its sub-rooms.
- An importer is a module that imports another one anywhere, for type checkers too, or that names it
  in a string, as the table of commands does.
- A single importer counts where both lie in one room, for then the two could be one file. Left out
  are packages, programs (`if __name__`), ports (only protocols), and what users import: the modules
  that the package itself names, or a module beside the package.
- A class name counts where more than one module defines it at its top. A name with an underscore is
  the business of its file, and is left out.
- The length of a function reaches from `def` to its last line, docstring included.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src"
PACKAGE = "chasquimq"
LONGEST_SHOWN = 12
LONG_FILE_LINES = 400
_FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """One file of the package."""

    name: str
    path: Path

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def lines(self) -> int:
        return len(self.text.splitlines())

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @property
    def is_spark(self) -> bool:
        return "spark" in self.name.split(".")

    @property
    def room(self) -> str:
        return self.name if self.is_package else self.name.rpartition(".")[0]

    @property
    def is_program(self) -> bool:
        tests = [node.test for node in self.tree.body if isinstance(node, ast.If)]
        return any(ast.unparse(test) == "__name__ == '__main__'" for test in tests)

    @property
    def is_port(self) -> bool:
        has_functions = any(isinstance(node, _FUNCTION) for node in self.tree.body)
        return bool(self.classes) and not has_functions and all(map(_is_protocol, self.classes))

    @property
    def classes(self) -> list[ast.ClassDef]:
        return [node for node in self.tree.body if isinstance(node, ast.ClassDef)]

    @property
    def public_class_names(self) -> list[str]:
        return [one.name for one in self.classes if not one.name.startswith("_")]

    @property
    def function_lines(self) -> list[int]:
        functions = [node for node in ast.walk(self.tree) if isinstance(node, _FUNCTION)]
        return [(node.end_lineno or node.lineno) - node.lineno + 1 for node in functions]

    def mentions(self) -> Iterator[str]:
        """The dotted names that it imports or names in a string; not all of them are modules."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield node.module
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value.partition(":")[0]


class FloorPlan:
    """The modules of the package and who imports them."""

    def __init__(self, source: Path = SOURCE) -> None:
        self.modules = _modules(source, f"{PACKAGE}/**/*.py")
        self._entry_points = _modules(source, "*.py")
        self._names = {module.name for module in self.modules}

    @property
    def without_spark(self) -> list[Module]:
        return [module for module in self.modules if not module.is_spark]

    @cached_property
    def importers(self) -> dict[str, set[str]]:
        """The modules that import a module, by its name."""
        found: dict[str, set[str]] = defaultdict(set)
        for module in self.modules:
            for name in set(module.mentions()) & self._names - {module.name}:
                found[name].add(module.name)
        return found

    @cached_property
    def for_users(self) -> set[str]:
        """The modules whose names the package offers, or modules beside it."""
        offering = [module for module in self.modules if module.name == PACKAGE]
        mentioned = {name for one in offering + self._entry_points for name in one.mentions()}
        return mentioned & self._names

    @cached_property
    def one_importer(self) -> dict[str, str]:
        """The modules with a single importer, which lies in the same room, and that importer."""
        rooms = {module.name: module.room for module in self.modules}
        found: dict[str, str] = {}
        for module in self.modules:
            importers = self.importers[module.name]
            if len(importers) != 1 or self._stands_alone(module):
                continue
            (importer,) = importers
            if rooms[importer] == module.room:
                found[module.name] = importer
        return found

    def _stands_alone(self, module: Module) -> bool:
        is_own = module.is_package or module.is_program or module.is_port
        return is_own or module.name in self.for_users

    @cached_property
    def class_homes(self) -> dict[str, list[str]]:
        """The class names that several modules define, and these modules."""
        homes: dict[str, list[str]] = defaultdict(list)
        for module in self.modules:
            for name in module.public_class_names:
                homes[name].append(module.name)
        return {name: found for name, found in sorted(homes.items()) if len(found) > 1}

    @cached_property
    def function_lines(self) -> list[int]:
        """The lengths of all functions, the shortest first."""
        return sorted(lines for module in self.modules for lines in module.function_lines)

    @cached_property
    def longest(self) -> list[Module]:
        """All modules, the longest first."""
        return sorted(self.modules, key=lambda module: -module.lines)

    @cached_property
    def rooms(self) -> Counter[str]:
        """How many modules a room holds, its `__init__.py` left out."""
        return Counter(module.room for module in self.modules if not module.is_package)


def quantile(ordered: Sequence[int], part: float) -> int:
    """The value below which this part of the ordered values lies."""
    return ordered[min(int(len(ordered) * part), len(ordered) - 1)]


def _modules(source: Path, pattern: str) -> list[Module]:
    paths = sorted(source.glob(pattern))
    return [Module(_dotted(path.relative_to(source)), path) for path in paths]


def _dotted(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _is_protocol(kind: ast.ClassDef) -> bool:
    return any(ast.unparse(base).startswith("Protocol") for base in kind.bases)


def report(plan: FloorPlan) -> Iterator[str]:
    """The figures, line by line."""
    for title, modules in (("all", plan.modules), ("without spark", plan.without_spark)):
        lines = sum(module.lines for module in modules)
        yield f"{title:<16}{len(modules):>5} modules {lines:>7,} lines"
    lengths = plan.function_lines
    median, p90 = quantile(lengths, 0.5), quantile(lengths, 0.9)
    yield f"{'functions':<16}{len(lengths):>5}, median {median} lines, p90 {p90}"
    yield f"\nmodules with one importer, in the same room: {len(plan.one_importer)}"
    yield from (f"  {name} <- {by}" for name, by in plan.one_importer.items())
    yield f"\nclass names in more than one module: {len(plan.class_homes)}"
    yield from (f"  {name}: {', '.join(homes)}" for name, homes in plan.class_homes.items())
    long = [module for module in plan.longest if module.lines > LONG_FILE_LINES]
    yield f"\nfiles of more than {LONG_FILE_LINES} lines: {len(long)}; the longest:"
    yield from (f"  {one.lines:>4} {one.name}" for one in plan.longest[:LONGEST_SHOWN])
    yield "\nmodules in a room:"
    yield from (f"  {count:>4} {room}" for room, count in plan.rooms.most_common())


if __name__ == "__main__":
    sys.stdout.write("\n".join(report(FloorPlan())) + "\n")
