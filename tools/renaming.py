"""Writes the text of one file under the new names of modules and of what they define.

tools/move_modules.py says which these are, and reads and writes the files.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
MOVED_HERE = "pass  # moved here"

Edit = tuple[int, int, str]


@dataclass(frozen=True)
class Mapping:
    """Which modules and names become which; whole dotted names everywhere."""

    root: Path
    package: str
    targets: dict[str, list[str]]
    names: dict[tuple[str, str], str]
    docstrings: dict[str, str]

    @cached_property
    def modules(self) -> dict[str, str]:
        return {old: new for new, olds in self.targets.items() for old in olds}

    @cached_property
    def packages_after(self) -> set[str]:
        """Every name that is a folder once all have moved."""
        now = (self.module_of(path) for path in self.source.rglob("*.py"))
        after = [self.modules.get(name, name).split(".") for name in now if name]
        return {".".join(parts[:n]) for parts in after for n in range(1, len(parts))}

    @property
    def source(self) -> Path:
        return self.root / "src"

    def full(self, name: str) -> str:
        return f"{self.package}.{name}" if name else self.package

    def path_of(self, module: str) -> Path:
        path = self.source.joinpath(*module.split("."))
        file = path.with_suffix(".py")
        return path / "__init__.py" if path.is_dir() and not file.exists() else file

    def new_path_of(self, module: str) -> Path:
        path = self.source.joinpath(*module.split("."))
        is_package = module in self.packages_after
        return path / "__init__.py" if is_package else path.with_suffix(".py")

    def module_of(self, path: Path) -> str:
        """The dotted name of a file, or nothing for one that is no module of ours."""
        if path.suffix != ".py" or not path.is_relative_to(self.source):
            return ""
        parts = path.relative_to(self.source).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def are_merged(self, one: str, other: str) -> bool:
        """Whether both end in the same file."""
        return one in self.modules and self.modules[one] == self.modules.get(other, other)

    def imported(self, home: str, name: str, alias: str | None) -> tuple[str, str, str | None]:
        """What `from home import name as alias` becomes; a module keeps its name in the file."""
        module = self.modules.get(f"{home}.{name}")
        if module is None:
            return self.modules.get(home, home), self.names.get((home, name), name), alias
        new_home, _, new_name = module.rpartition(".")
        alias = alias or name
        return new_home, new_name, None if alias == new_name else alias


def new_text(path: Path, text: str, module: str, mapping: Mapping) -> str:
    """A file with everything in it under its new name."""
    texts = Texts(mapping)
    between = texts.code if path.suffix == ".py" else texts.prose
    if path.suffix == ".py":
        text = with_edits(text, code_edits(text, module, mapping))
        places = string_places(text)
    else:
        places = [found.span() for found in FENCED.finditer(text)]
    made, end = "", 0
    for begin, stop in places:
        made += between(text[end:begin]) + texts.program(text[begin:stop])
        end = stop
    return made + between(text[end:])


def with_edits(text: str, edits: Iterable[Edit]) -> str:
    for begin, end, new in sorted(set(edits), reverse=True):
        text = text[:begin] + new + text[end:]
    return text


# ── code ─────────────────────────────────────────────────────────────────────────────────────


class Places:
    """Turns lines and columns of a syntax tree into offsets of its text."""

    def __init__(self, text: str) -> None:
        self._lines = text.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))

    def offset(self, line: int, column: int) -> int:
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:column].decode())

    def span(self, node: ast.stmt | ast.expr) -> tuple[int, int]:
        end = self.offset(node.end_lineno or node.lineno, node.end_col_offset or 0)
        return self.offset(node.lineno, node.col_offset), end


def string_places(text: str) -> list[tuple[int, int]]:
    """Where strings stand, each part of one that is formatted only once."""
    places, found = Places(text), list[tuple[int, int]]()
    for node in ast.walk(ast.parse(text)):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if isinstance(node, ast.JoinedStr) or is_text:
            found.append(places.span(node))  # pyright: ignore[reportArgumentType]
    outer, end = list[tuple[int, int]](), -1
    for begin, stop in sorted(found, key=lambda span: (span[0], -span[1])):
        if begin >= end:
            outer.append((begin, stop))
            end = stop
    return outer


def code_edits(text: str, module: str, mapping: Mapping) -> Iterator[Edit]:
    """Imports from new modules, and uses of new names."""
    tree, places = ast.parse(text), Places(text)
    renames = {old: new for (home, old), new in mapping.names.items() if home == module}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            new, local = new_import(node, module, mapping)
            renames |= local
            if new:
                yield (*places.span(node), new)
        elif isinstance(node, ast.Import) and any(
            one.name in mapping.modules for one in node.names
        ):
            moved = [(mapping.modules.get(one.name, one.name), one.asname) for one in node.names]
            yield (*places.span(node), "import " + ", ".join(spelled(*one) for one in moved))
    if renames:
        renamer = Renamer(text, places, renames)
        renamer.visit(tree)
        yield from renamer.edits


def spelled(name: str, alias: str | None) -> str:
    return f"{name} as {alias}" if alias else name


def new_import(node: ast.ImportFrom, module: str, mapping: Mapping) -> tuple[str, dict[str, str]]:
    """The import as it is now, nothing where it stays, and names of this file that change."""
    home, lines, local = node.module or "", dict[str, list[str]](), dict[str, str]()
    stays = True
    for one in node.names:
        new_home, name, alias = mapping.imported(home, one.name, one.asname)
        known_as, is_here = one.asname or one.name, mapping.are_merged(module, home)
        if (home, one.name) in mapping.names or is_here:
            local |= {known_as: name} if is_here or not alias else {}
        stays = stays and (new_home, name, alias, is_here) == (home, one.name, one.asname, False)
        if not is_here:
            lines.setdefault(new_home, []).append(spelled(name, alias))
    local = {old: new for old, new in local.items() if old != new}
    if stays:
        return "", local
    made = [f"from {new_home} import {', '.join(names)}" for new_home, names in lines.items()]
    return f"\n{' ' * node.col_offset}".join(made) or MOVED_HERE, local


class Renamer(ast.NodeVisitor):
    """Finds uses of names of a module, where no function has a variable of that name."""

    def __init__(self, text: str, places: Places, renames: dict[str, str]) -> None:
        self.edits: list[Edit] = []
        self._text = text
        self._places = places
        self._renames = renames

    def visit_Name(self, node: ast.Name) -> None:
        self._rename(node, node.id)

    def visit_Global(self, node: ast.Global) -> None:
        for name in node.names:
            self._rename(node, name)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._rename_definition(node)
        self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._rename_definition(node)
        for outside in (*node.decorator_list, node.args, node.returns):
            if outside is not None:
                self.visit(outside)
        self._visit_body(node.args, node.body)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.visit_FunctionDef(node)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.visit(node.args)
        self._visit_body(node.args, [node.body])

    def _visit_body(self, args: ast.arguments, body: Iterable[ast.stmt | ast.expr]) -> None:
        inside = [one for part in body for one in ast.walk(part)]
        own = {one.arg for one in ast.walk(args) if isinstance(one, ast.arg)}
        stored = {n.id for n in inside if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        shared = {name for n in inside if isinstance(n, ast.Global) for name in n.names}
        hidden = own | (stored - shared)
        outer = self._renames
        self._renames = {old: new for old, new in outer.items() if old not in hidden}
        for part in body:
            self.visit(part)
        self._renames = outer

    def _rename_definition(
        self, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    ) -> None:
        if node.col_offset == 0:
            self._rename(node, node.name)

    def _rename(self, node: ast.stmt | ast.expr, name: str) -> None:
        if name in self._renames:
            found = re.compile(rf"\b{name}\b").search(self._text, self._places.span(node)[0])
            assert found, f"{name} must stand in line {node.lineno}"
            self.edits.append((*found.span(), self._renames[name]))


# ── text: strings, programs in strings, pages, paths ─────────────────────────────────────────


class Texts:
    """Rewrites what is no code: strings, programs in them, pages, comments."""

    def __init__(self, mapping: Mapping) -> None:
        self._mapping = mapping
        package, names = mapping.package, r"\w+(?: +as +\w+)?"
        dotted = rf"(?<![\w./-]){package}(?:\.\w+)+"
        self._dotted = re.compile(dotted)
        # What stands after these is part of a statement, which is rewritten already.
        self._dotted_in_code = re.compile(rf"(?<!from )(?<!import ){dotted}")
        # In a string of one line, a line may begin after the two characters \n.
        self._start = r"(?:(?<=\\n)|(?<!\w))"
        self._import_or_dotted = re.compile(
            rf"{self._start}from +(?P<home>{dotted}) +import +(?P<open>\()?"
            rf"\s*(?P<names>{names}(?:\s*,\s*{names})*)(?(open),?\s*\)?)|{dotted}"
        )
        self._path = re.compile(
            rf"(?<![\w./-])((?:src/)?(?:{package}/)?)([a-z_]+(?:/[a-z_]+)*)\.py\b"
        )

    def prose(self, text: str) -> str:
        return self._path.sub(self._new_path, self._dotted.sub(self._new_dotted, text))

    def code(self, text: str) -> str:
        return self._path.sub(self._new_path, self._dotted_in_code.sub(self._new_dotted, text))

    def program(self, text: str) -> str:
        """A string or a fenced block: what it imports may have another name from there on."""
        renames: dict[str, str] = {}
        text = self._import_or_dotted.sub(lambda found: self._new_part(found, renames), text)
        for old, new in renames.items():
            text = re.sub(rf"{self._start}{old}\b", new, text)
        return self._path.sub(self._new_path, text)

    def _new_part(self, found: re.Match[str], renames: dict[str, str]) -> str:
        if found["home"] is None:
            return self._new_dotted(found)
        lines: dict[str, list[str]] = defaultdict(list)
        for part in found["names"].split(","):
            name, _, alias = (one.strip() for one in part.strip().partition(" as "))
            home, new, kept = self._mapping.imported(found["home"], name, alias or None)
            lines[home].append(spelled(new, kept))
            if new != name and not (alias or kept or f"{found['home']}.{name}" in self._modules):
                renames[name] = new
        if dict(lines) == {found["home"]: [" ".join(n.split()) for n in found["names"].split(",")]}:
            return found[0]
        # Both on one line: a string of one line may end its lines with the two characters \n.
        return "; ".join(f"from {home} import {', '.join(new)}" for home, new in lines.items())

    def _new_dotted(self, found: re.Match[str]) -> str:
        parts = found[0].split(".")
        for count in range(len(parts), 1, -1):
            head, rest = ".".join(parts[:count]), parts[count:]
            if head in self._modules:
                rest[:1] = [self._mapping.names.get((head, name), name) for name in rest[:1]]
                return ".".join([self._modules[head], *rest])
            if rest and (head, rest[0]) in self._mapping.names:
                return ".".join([head, self._mapping.names[head, rest[0]], *rest[1:]])
            if head in self._mapping.targets:
                break
        return found[0]

    def _new_path(self, found: re.Match[str]) -> str:
        old = self._mapping.full(found[2].removesuffix("/__init__").replace("/", "."))
        if old not in self._modules:
            return found[0]
        new = self._mapping.new_path_of(self._modules[old])
        return found[1] + new.relative_to(self._mapping.source / self._mapping.package).as_posix()

    @property
    def _modules(self) -> dict[str, str]:
        return self._mapping.modules
