"""The map of rooms is true, and so is the version."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import chasquimq

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "chasquimq"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
# They serve the terminal, so only the command line imports them.
TERMINAL_PACKAGES = {"click", "rich"}
VAGUE_NAMES = {"utils", "util", "helpers", "common", "base", "misc"}

LOADED_BY_IMPORT = """
import sys
import chasquimq
print(sorted({name.split(".")[0] for name in sys.modules} & {"redis", "hiredis", "rich", "click"}))
"""


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def imports(path: Path) -> list[str]:
    """The dotted names of the modules that a file imports, anywhere in it."""
    tree = ast.parse(path.read_text())
    named = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    named += [a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names]
    return named


def own_imports(path: Path) -> set[str]:
    """The rooms of this package that a file imports, by name."""
    return {name.split(".")[1] for name in imports(path) if name.startswith("chasquimq.")}


def bare_errors(path: Path) -> list[int]:
    """The lines that make an error which says nothing about its kind."""
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    return [call.lineno for call in calls if ast.unparse(call.func).endswith("ChasquiError")]


def own_loggers(path: Path) -> list[int]:
    """The lines that make a logger which raises what a user's logging set-up raises."""
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    return [call.lineno for call in calls if ast.unparse(call) == "logging.getLogger(__name__)"]


def test_every_module_logs_by_a_logger_that_cannot_raise():
    found = {str(path.relative_to(PACKAGE)): own_loggers(path) for path in modules()}
    found.pop("__init__.py")  # it logs nothing: it gives the package its null handler

    assert {path: lines for path, lines in found.items() if lines} == {}


def test_every_error_has_a_name_of_its_own():
    found = {str(path.relative_to(PACKAGE)): bare_errors(path) for path in modules()}

    assert {path: lines for path, lines in found.items() if lines} == {}


def test_every_room_imports_only_what_it_may():
    answer = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()"],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )

    assert answer.returncode == 0, answer.stdout


def test_importing_the_package_loads_no_client_and_no_terminal_library():
    answer = subprocess.run(
        [sys.executable, "-c", LOADED_BY_IMPORT],
        env={"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=True,
    )

    assert answer.stdout == "[]\n"


def test_only_the_command_line_imports_what_serves_a_terminal():
    others = [path for path in modules() if "cli" not in path.relative_to(PACKAGE).parts]
    found = {
        str(path): TERMINAL_PACKAGES & {n.split(".")[0] for n in imports(path)} for path in others
    }

    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize("path", sorted((PACKAGE / "server").glob("*.py")), ids=lambda p: p.name)
def test_the_server_room_knows_only_errors(path: Path):
    assert own_imports(path) <= {"server", "errors"}


def test_every_module_opens_with_a_sentence_about_its_duty():
    silent = [path.name for path in modules() if not ast.get_docstring(ast.parse(path.read_text()))]

    assert silent == []


def test_no_file_has_a_name_that_says_nothing():
    assert [path.name for path in modules() if path.stem in VAGUE_NAMES] == []


def test_the_package_tells_type_checkers_that_it_is_typed():
    assert (PACKAGE / "py.typed").exists()


def test_the_version_is_written_down_in_one_file_that_the_build_reads():
    (file,) = PYPROJECT["tool"]["hatch"]["version"].values()

    assert PYPROJECT["project"]["dynamic"] == ["version"]
    assert f'__version__ = "{chasquimq.version()}"' in (ROOT / file).read_text().splitlines()
