"""Moves, merges and renames modules and names by a mapping file, everywhere they are mentioned.

    python tools/move_modules.py MAPPING.toml            shows names that would clash
    python tools/move_modules.py MAPPING.toml --write    rewrites the tree, unless names clash

The mapping is TOML; all modules in it are named below the package:

    [modules]      "store.rows" = ["store.row_write", "store.row_writing"]    new = the old ones
    [docstrings]   "store.rows" = "Adds rows of a table as jobs."             optional
    [names]        "store.row_write:Row" = "RowWrite"                         old = new name

`package = "other"` at its top names another package than chasquimq. Imports follow, and so do dotted
names in strings, programs inside strings, pages, and paths of files, as mutants name them. Several
modules become one in the order of the list, with their imports first. A definition that stands in
several of them is kept once if all spell it the same; if not, `[names]` has to tell them apart.
Comments stay where they are. An attribute of an imported module (`drain.LIMIT`) is not renamed: type
checks and tests name each. Sort the imports and format afterwards:

    ruff check --fix-only . && ruff format .
"""

from __future__ import annotations

import argparse
import ast
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from renaming import Mapping, new_text

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("src", "tests", "benchmarks", "examples", "tools", "deploy", "docs")
FILES = ("pyproject.toml", "README.md", "CONTRIBUTING.md", "Makefile", "chasqui", "mkdocs.yml")
KINDS = {".py", ".md", ".toml", ".yml", ".yaml", ".txt", ".lua", ".sh", ".cfg", ""}
LEFT_ALONE = {"__pycache__", "results", "requirements", "test_move_modules.py"}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("mapping", type=Path)
    parser.add_argument("--write", action="store_true", help="rewrite the tree")
    parser.add_argument("--root", type=Path, default=ROOT, help="the folder that holds src")
    arguments = parser.parse_args(argv)
    mapping = read_mapping(arguments.mapping, arguments.root)
    missing = [old for old in mapping.modules if not mapping.path_of(old).exists()]
    problems = [f"not there: {old}" for old in missing] or list(find_clashes(mapping))
    if problems:
        print("\n".join(problems), file=sys.stderr)
        return 1
    if arguments.write:
        rewrite_all(mapping)
    return 0


def read_mapping(path: Path, root: Path) -> Mapping:
    raw = tomllib.loads(path.read_text())
    mapping = Mapping(root, raw.get("package", "chasquimq"), {}, {}, {})
    for new, olds in raw.get("modules", {}).items():
        mapping.targets[mapping.full(new)] = [mapping.full(old) for old in olds]
    for place, new in raw.get("names", {}).items():
        module, _, name = place.partition(":")
        mapping.names[mapping.full(module), name] = new
    for new, text in raw.get("docstrings", {}).items():
        mapping.docstrings[mapping.full(new)] = text
    return mapping


# ── names that would clash ───────────────────────────────────────────────────────────────────


def find_clashes(mapping: Mapping) -> Iterator[str]:
    for target, olds in mapping.targets.items():
        meanings: dict[str, dict[str, str]] = defaultdict(dict)
        for old in olds:
            for name, meaning in bindings(old, mapping):
                meanings[name][old] = meaning
        for name, by_module in meanings.items():
            if len(set(by_module.values())) > 1:
                yield f"{target}: {name} differs in {', '.join(by_module)}"


def bindings(module: str, mapping: Mapping) -> Iterator[tuple[str, str]]:
    """What each name at the top of a module means, as text that can be compared."""
    for node in ast.parse(mapping.path_of(module).read_text()).body:
        if isinstance(node, ast.ImportFrom):
            for one in node.names:
                home, name, alias = mapping.imported(node.module or "", one.name, one.asname)
                if not mapping.are_merged(module, node.module or ""):
                    yield alias or name, f"{home}.{name}"
        elif isinstance(node, ast.Import):
            yield from ((one.asname or one.name, one.name) for one in node.names)
        else:
            for name in defined_by(node):
                yield mapping.names.get((module, name), name), ast.unparse(node)


def defined_by(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Assign):
        parts = [one for target in node.targets for one in ast.walk(target)]
        return [one.id for one in parts if isinstance(one, ast.Name)]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    return []


# ── the whole tree ───────────────────────────────────────────────────────────────────────────


def rewrite_all(mapping: Mapping) -> None:
    texts = dict(readable_files(mapping.root))
    parts: dict[str, str] = {}
    written: dict[Path, str] = {}
    _ = mapping.packages_after  # as long as every file is there
    for path, text in texts.items():
        module = mapping.module_of(path)
        new = new_text(path, text, module, mapping)
        if module in mapping.modules:
            parts[module] = new
            path.unlink()
        elif new != text:
            written[path] = new
    for target, olds in mapping.targets.items():
        merged = merge(target, [parts[old] for old in olds], mapping)
        written[mapping.new_path_of(target)] = merged
    for path, text in written.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    make_packages(mapping)


def readable_files(root: Path) -> Iterator[tuple[Path, str]]:
    found = [root / name for name in FILES]
    found += [path for name in FOLDERS for path in sorted((root / name).rglob("*"))]
    for path in found:
        if path.suffix in KINDS and not LEFT_ALONE & set(path.parts) and path.is_file():
            try:
                yield path, path.read_text()
            except UnicodeDecodeError:
                continue


def make_packages(mapping: Mapping) -> None:
    for package in sorted(mapping.packages_after):
        init = mapping.source.joinpath(*package.split("."), "__init__.py")
        if not init.exists():
            init.write_text('"""TODO."""\n')
            print(f"made {init.relative_to(mapping.root)}, which needs its first line")


# ── merging ──────────────────────────────────────────────────────────────────────────────────


@dataclass
class Merged:
    """One file in the making."""

    docstring: str = ""
    imports: dict[str, None] = field(default_factory=dict[str, None])
    typing_only: dict[str, None] = field(default_factory=dict[str, None])
    seen: dict[str, str] = field(default_factory=dict[str, str])
    bodies: list[str] = field(default_factory=list[str])

    def add(self, text: str) -> None:
        """Take the imports of one module, and what it defines that is not there yet."""
        tree, lines, end, kept = ast.parse(text), text.splitlines(keepends=True), 0, ""
        for nth, node in enumerate(tree.body):
            block = "".join(lines[end : node.end_lineno])
            end = node.end_lineno or end
            if nth == 0 and ast.get_docstring(tree) is not None:
                self.docstring = self.docstring or block.strip("\n")
            elif not (self._is_import(node, block) or self._is_known(node)):
                kept += block
        self.bodies.append((kept + "".join(lines[end:])).strip("\n"))

    def _is_import(self, node: ast.stmt, block: str) -> bool:
        is_typing = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if isinstance(node, ast.If) and is_typing and not node.orelse:
            self.typing_only |= dict.fromkeys(ast.unparse(one) for one in node.body)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            self.imports[block.strip("\n")] = None
        else:
            return isinstance(node, ast.Pass)
        return True

    def _is_known(self, node: ast.stmt) -> bool:
        names, text = defined_by(node), ast.unparse(node)
        if names and all(self.seen.get(name) == text for name in names):
            return True
        self.seen |= dict.fromkeys(names, text)
        return False

    def text(self) -> str:
        # This one has to come first, once.
        imports = sorted(self.imports, key=lambda line: "__future__" not in line)
        typing_only = [line for line in self.typing_only if line != "pass"]
        block = "if TYPE_CHECKING:\n    " + "\n    ".join(typing_only) if typing_only else ""
        head = [self.docstring, "\n".join(imports), block]
        bodies = "\n\n\n".join(body for body in self.bodies if body)
        return "\n\n".join(part for part in (*head, bodies) if part) + "\n"


def merge(target: str, texts: list[str], mapping: Mapping) -> str:
    """One file of several: their imports first, then what they define, in their order."""
    merged = Merged()
    for text in texts:
        merged.add(text)
    if target in mapping.docstrings:
        merged.docstring = f'"""{mapping.docstrings[target]}"""'
    return merged.text()


if __name__ == "__main__":
    sys.exit(main())
