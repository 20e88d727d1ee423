"""Prints answers as tables or as JSON, without control bytes and passwords."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import click

Row = Mapping[str, Any]

MASK = "***"
# A name that is longer, as a command line, moves no column.
_NAME_CHARS_MAX = 40
# Controls move the cursor or hide text; so do the marks that turn the reading direction.
_UNSAFE = re.compile("[\0-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
# None of these may look at a character again for every place before it: error texts quote what
# other programs wrote, and a log that takes seconds for a line holds up everything else.
_WORD = re.compile(r"\S+")
# Without an @ a password stands where the port should be.
_NO_PORT = re.compile(
    r"(?P<place>\b(?:redis|valkey)[a-z+]{0,10}://[^:/?#@\s\[]*:)(?!\d+(?:[^\w]|$))[^/?#@\s'\",;]+",
    re.IGNORECASE,
)
_SECRET_PARAMETER = re.compile(
    r"(?P<name>[?&](?:\w*passw(?:or)?d|pwd|token|secret)=)[^&#\s]*", re.IGNORECASE
)


def emit(answer: Row | Sequence[Row], as_json: bool) -> None:
    """Print one mapping or many rows, as JSON when asked and else as a table."""
    if as_json:
        emit_json(answer)
    elif isinstance(answer, Mapping):
        emit_table([{"name": name, "value": answer[name]} for name in answer], has_header=False)
    else:
        emit_table(answer)


def emit_json(answer: object) -> None:
    """Print one JSON document; text stays readable, controls are escaped."""
    click.echo(json_text(answer, indent=2))


def emit_json_line(answer: object) -> None:
    """Print one of many JSON documents, each on a line of its own."""
    click.echo(json_text(answer))


def json_text(answer: object, indent: int | None = None) -> str:
    """The answer as JSON that is safe to show."""
    # Raw C1 controls and direction marks are legal JSON, so only ASCII leaves nothing to smuggle.
    is_safe = not _UNSAFE.search(json.dumps(answer, default=str, ensure_ascii=False))
    return json.dumps(answer, default=str, ensure_ascii=not is_safe, indent=indent)


def emit_table(
    rows: Sequence[Row],
    *,
    has_header: bool = True,
    text: Sequence[str] = (),
    optional: Sequence[str] = (),
    right: Sequence[str] = (),
) -> None:
    """Print rows under the names of the first one: drawn on a terminal, plain in a pipe.

    On a narrow terminal the columns of `text` are wrapped, and those that are `optional` left out.
    Those of `right` stand at the right.
    """
    if not rows:
        return
    from chasquimq.cli.output.tables import Shape, plain_lines, print_table

    names, cells = table_cells(rows)
    shape = Shape(has_header, text, optional, right)
    if not sys.stdout.isatty():
        for line in plain_lines(names, cells, shape):
            click.echo(line)
        return
    left_out = print_table(names, cells, shape)
    if left_out:
        talk(f"no room for {' and '.join(left_out)}; a wider terminal or --json shows all")


def emit_pairs(pairs: Iterable[tuple[str, str]], indent: str = "") -> None:
    """Print a line for each pair, the second ones below each other; on a terminal they wrap."""
    from chasquimq.cli.output.tables import padded, terminal_columns, wrapped

    rows = [(clean(name), clean(words)) for name, words in pairs]
    head = max((len(name) for name, _ in rows if len(name) < _NAME_CHARS_MAX), default=0)
    for name, words in rows:
        start = f"{indent}{padded(name, head)}  "
        lines = [words]
        if sys.stdout.isatty():
            lines = wrapped(words, max(terminal_columns() - len(start), len(start)), "")
        click.echo(f"\n{' ' * len(start)}".join([start + lines[0], *lines[1:]]))


def emit_text(text: str, indent: str = "") -> None:
    """Print text of many lines, such as a traceback, without passwords and control bytes."""
    for line in mask_secrets(text).split("\n"):
        click.echo(f"{indent}{clean(line)}")


def talk(sentence: str) -> None:
    """Say something on stderr, without passwords: one line in a pipe, wrapped on a terminal."""
    safe = shown(sentence)
    if sys.stderr.isatty():
        from chasquimq.cli.output.tables import terminal_columns, wrapped

        safe = "\n".join(wrapped(safe, terminal_columns()))
    click.echo(safe, err=True)


def table_cells(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Names and cells as text that is safe to show."""
    names = list(rows[0])
    cells = [[clean(_text(row.get(name))) for name in names] for row in rows]
    return [clean(name) for name in names], cells


def clean(text: str) -> str:
    """Escape what a terminal would obey instead of show."""
    return _UNSAFE.sub(_escape, text)


def mask_url(url: str) -> str:
    """The URL with its password replaced; one without a scheme is shown with it."""
    url = "%20".join(url.split())
    return mask_secrets(url if "://" in url else f"redis://{url}")


def shown(text: str) -> str:
    """A line of foreign text as it may be shown: no password of a URL, no control byte."""
    return clean(mask_secrets(text))


def counted(count: int, noun: str, plural: str = "") -> str:
    """How many of what: `1 job`, `1,200 jobs`."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def error_text(error: BaseException) -> str:
    """The kind of an error and its own words; those of a user's class may fail to come."""
    try:
        words = str(error)
    except (Exception, SystemExit):  # noqa: BLE001  `__str__` is the user's code, too
        words = "(its text cannot be shown)"
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def mask_secrets(text: str) -> str:
    """Replace the password of every URL in a text."""
    if "://" in text and "@" in text:
        text = _WORD.sub(_mask_user_info, text)
    masked = _NO_PORT.sub(rf"\g<place>{MASK}", text)
    return _SECRET_PARAMETER.sub(rf"\g<name>{MASK}", masked)


def _mask_user_info(found: re.Match[str]) -> str:
    head, mark, rest = found[0].partition("://")
    # Up to the last @: a password may hold any character its owner forgot to escape.
    user_info, at, place = rest.rpartition("@")
    if not at:
        return found[0]
    user, colon, _ = user_info.partition(":")
    # Of two @ it is not known which one ends the user.
    shown_user = f"{user}:" if colon and "@" not in user else ""
    return f"{head}{mark}{shown_user}{MASK}@{place}"


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    named = {9: "\\t", 10: "\\n", 13: "\\r"}.get(code)
    return named or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


def _text(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


T = TypeVar("T")


def emit_list(
    found: Sequence[T],
    as_json: bool,
    *,
    facts: Callable[[T], dict[str, Any]],
    row: Callable[[T], Row],
    nothing: str,
    text: Sequence[str] = (),
    optional: Sequence[str] = (),
) -> None:
    """Print what was found; that nothing was is talk, and goes to stderr."""
    if as_json:
        emit_json([facts(one) for one in found])
    elif found:
        emit_table([row(one) for one in found], text=text, optional=optional)
    else:
        click.echo(nothing, err=True)
