"""Text that users read says things in the words of the field, not in private ones.

Pages, help, log lines, errors, and docstrings of public names.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest

from chasquimq import errors
from surface.python_api import PUBLIC, names_of

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "chasquimq"
FROZEN = ROOT / "tests" / "surface" / "frozen"
PAGES = ("docs/**/*.md", "deploy/**/*.y*ml", "deploy/**/*.json", "examples/**/*.py", "*.md")

# Each is a pattern of whole words, and what to write instead.
PRIVATE = {
    "whoever|whosoever": "the worker, the caller, the program",
    "somebody|anybody|everybody": "a worker, a user, every client",
    "nobody": "no worker, no program; it is not known",
    "told|tells": "reported, logged, sent; reports, says, shows",
    "untold": "not reported",
    "tellers?": "reporter",
    "hears?|heard|hearers?|hearing": "gets, receives; was received",
    "heeds?|heeded|heeding": "reacts to, checks",
    "troubles?|troubled|troublesome": "problem, error",
    "farewell|farewells": "shutdown",
    "door|doors": "settlement",
    "spells?|spelled|spelt|spellings?|spellers?": "encodes, writes; form",
    "sighting|sightings": "match",
    "graves?": "dead worker, DLQ",
    "landed|landing": "written",
    "holdings": "jobs in flight",
    "historian|announcer|timekeeper|chorus": "history recorder, event publisher, clock sync, listeners",
    "hands? back|handed back|hand-back": "requeues, gives back",
    "anew|afresh": "again",
    "in hand": "in flight",
    "lets? go|letting go": "releases, skips",
    "strangers?": "other programs, other users",
    "the original": "ChasquiMQ (Rust)",
    "links? (?:that )?(?:broke|breaks?)|lost with a link": "connection",
}
# What users see under these names is part of the format, or a name of a thing.
ALLOWED = {
    ("docs/reference/cli.md", "trouble"): "a key of the JSON of `chasqui watch`",
    ("CHANGELOG.md", "untold"): "an attribute that is gone",
}
# Rooms whose names, comments and docstrings are free of these words, too.
SWEPT = (
    "cli",
    "engine",
    "model",
    "queue",
    "server",
    "spark",
    "store",
    "telemetry",
    "wire",
    "worker",
)
# Names in what commands print stay as they are.
KEYS_OF_OUTPUT = {'"trouble": look.error and mask_secrets(look.error),'}
NOT_IN_CODE = (
    "told|tell(?:s|ers?|ing)?|untold|nobody|somebody|anybody|everybody|whoever"
    "|hear(?:s|d|ers?|ing)?|heed(?:s|ed|ers?|ing)?|spell(?:s|ed|ings?|ers?)?|spelt"
    "|troubl(?:es?|ed|ing|esome)|company|companies|tail(?:ers?|ing)|anew|afresh|strangers?"
)
# Files, pages and spans have links; a connection is none.
ROOMS_WITHOUT_FILES = ("engine", "model", "queue", "store", "wire", "worker")
LOG_METHODS = frozenset({"debug", "info", "warning", "error", "exception", "critical", "log"})
ERRORS = frozenset(name for name, _ in inspect.getmembers(errors, inspect.isclass))


class Text(NamedTuple):
    """A piece of text, and where it stands."""

    place: str
    text: str


def pages() -> Iterator[Text]:
    for pattern in PAGES:
        for path in sorted(ROOT.glob(pattern)):
            yield Text(str(path.relative_to(ROOT)), path.read_text())


def help_texts() -> Iterator[Text]:
    yield Text("help of commands", (FROZEN / "commands.txt").read_text())


def public_docstrings() -> Iterator[Text]:
    for module in PUBLIC:
        if module.startswith(("chasquimq.spark", "pyspark")):
            continue
        for name in names_of(module):
            thing = getattr(import_module(module), name)
            yield Text(f"{module}.{name}", inspect.getdoc(thing) or "")
            for method, function in inspect.getmembers(thing) if inspect.isclass(thing) else ():
                is_ours = str(getattr(function, "__module__", "")).startswith("chasquimq")
                if is_ours and not method.startswith("_"):
                    yield Text(f"{module}.{name}.{method}", inspect.getdoc(function) or "")


def messages() -> Iterator[Text]:
    """What is logged or raised, as far as it stands in the source."""
    for path in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and _is_message(node):
                for text in _strings(node):
                    yield Text(f"{path.relative_to(ROOT)}:{node.lineno}", text)


def _is_message(node: ast.Call) -> bool:
    if isinstance(node.func, ast.Attribute):
        return node.func.attr in LOG_METHODS | ERRORS
    return isinstance(node.func, ast.Name) and node.func.id in ERRORS | {
        "Diagnosis", "ok", "note", "warning", "error",
    }  # fmt: skip


def _strings(node: ast.AST) -> Iterator[str]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
            yield inner.value


@pytest.mark.parametrize("texts", [pages, help_texts, public_docstrings, messages])
def test_what_users_read_has_no_private_words(texts):
    found = [
        f"{text.place}: {hit.group(0)!r} in …{text.text[max(0, hit.start() - 40):hit.end() + 30]}…: say {instead}"
        for text in texts()
        for words, instead in PRIVATE.items()
        for hit in re.finditer(rf"\b(?:{words})\b", text.text, re.IGNORECASE)
        if (text.place, hit.group(0).lower()) not in ALLOWED
    ]  # fmt: skip

    assert found == []


@pytest.mark.parametrize("room", SWEPT)
def test_code_has_no_private_words(room):
    links = "|links?" if room in ROOMS_WITHOUT_FILES else ""
    found = [
        f"{line.place}: {word!r}"
        for line in lines_of(room)
        for word in private_words(line.text, NOT_IN_CODE + links)
        if line.text.strip() not in KEYS_OF_OUTPUT
    ]

    assert found == []


def lines_of(room: str) -> Iterator[Text]:
    for path in sorted((SOURCES / room).rglob("*.py")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            yield Text(f"{path.relative_to(ROOT)}:{number}", line)


def private_words(line: str, words: str) -> list[str]:
    """The words of a line that are among these; parts of a name count as words."""
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", line)
    return re.findall(rf"(?<![a-z])(?:{words})(?![a-z])", parted, re.IGNORECASE)


@pytest.mark.parametrize(
    "name",
    [
        "_told_to_callers",
        "_REFUSED_SPELLINGS",
        "BatchTeller",
        "MoveSpeller",
        "Hearers",
        "a stranger",
    ],
)
def test_a_private_word_is_found_as_part_of_a_name(name):
    assert len(private_words(f"x = {name}()", NOT_IN_CODE)) == 1


@pytest.mark.parametrize(
    "name", ["retell", "Intelligence", "misspelt_names", "detailing", "linked"]
)
def test_a_word_that_holds_a_private_one_is_allowed(name):
    assert private_words(f"x = {name}()", NOT_IN_CODE + "|links?") == []


def test_every_line_that_may_keep_its_word_is_there():
    found = {line.text.strip() for room in SWEPT for line in lines_of(room)}

    assert found >= KEYS_OF_OUTPUT


def test_every_allowed_place_has_its_word():
    for place, word in ALLOWED:
        assert re.search(rf"\b{word}\b", (ROOT / place).read_text())
