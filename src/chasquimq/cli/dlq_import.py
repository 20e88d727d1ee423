"""Reads dead jobs from the lines of `chasqui dlq export`, and adds each once."""

from __future__ import annotations

import json
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

import click

from chasquimq.cli.asking import confirm
from chasquimq.cli.progress import progress_bar
from chasquimq.cli.render import clean, emit_json
from chasquimq.cli.visit import visit
from chasquimq.errors import ChasquiError, SettingsError, StoreError

LINES_PER_PAGE_MAX = 500
BYTES_PER_PAGE_MAX = 4 * 1024 * 1024
BAD_LINES_SHOWN_MAX = 3
_FIELDS = (
    "dlq_id", "source_id", "reason", "detail", "name", "attempt", "failed_at_ms", "error",
    "fingerprint", "traceback",
)  # fmt: skip


class Import(NamedTuple):
    """What became of a file; `known` lines were imported before, or are still in the DLQ."""

    lines: int
    added: int
    known: int


async def import_all(
    queue: str, url: str, file: Path, *, as_jobs: bool, is_dry: bool, is_sure: bool
) -> Import:
    """Check every line, ask, then add them page by page."""
    count = check_file(file, as_jobs=as_jobs)
    if is_dry or not count:
        return Import(count, 0, 0)
    if not is_sure:
        place = "to the workers" if as_jobs else "to the DLQ"
        confirm(f"add {count:,} jobs from {clean(file.name)} {place} of {clean(queue)}?")
    added = known = 0
    async with visit(queue, url, must_exist=False) as seen:
        # A server that is not there is told at once; what it holds does not matter.
        await seen.inspector.snapshot(queue)
        with progress_bar("importing") as advance:
            for page in _pages(file):
                done = await seen.queue.import_dlq(page, as_jobs=as_jobs)
                added, known = added + done, known + done.known
                advance(added + known, count)
    return Import(count, added, known)


def show(done: Import, *, is_dry: bool, as_jobs: bool, as_json: bool) -> None:
    """Print what happened, or would."""
    if as_json:
        emit_json({**done._asdict(), "dry_run": is_dry, "as_jobs": as_jobs})
        return
    jobs = "jobs" if as_jobs else "dead jobs"
    if is_dry:
        click.echo(f"would import {done.lines:,} {jobs}")
        return
    click.echo(f"imported {done.added:,} {jobs}")
    if done.known:
        click.echo(f"{done.known:,} were there, or were imported before", err=True)


def check_file(file: Path, *, as_jobs: bool) -> int:
    """How many lines there are.

    Raises:
        SettingsError: there are lines that are no dead jobs; says how many and what is wrong.
    """
    count, bad = 0, list[str]()
    bad_count = 0
    for number, line in _lines(file):
        count += 1
        try:
            _check(line, as_jobs=as_jobs)
        except ChasquiError as refused:
            bad_count += 1
            if len(bad) < BAD_LINES_SHOWN_MAX:
                bad.append(f"line {number}: {refused}")
    if bad_count:
        more = f"; and {bad_count - len(bad):,} more" if bad_count > len(bad) else ""
        found = f"{bad_count:,} of {count:,} that are not ({'; '.join(bad)}{more})"
        raise FileRefused(file, found)
    return count


class FileRefused(SettingsError):
    """Correct the lines that it names, or leave them out."""

    def __init__(self, file: Path, found: str) -> None:
        ChasquiError.__init__(
            self,
            f"every line of {file} must be one of `chasqui dlq export`, found {found}; "
            "nothing was imported",
        )
        self.name, self.found, self.rule = "file", found, "lines of an export"


def _check(line: bytes, *, as_jobs: bool) -> None:
    from chasquimq.queue.dead_letters import check_letter

    check_letter("it", letter_of(line), must_be_readable=as_jobs)


def letter_of(line: bytes) -> dict[str, Any]:
    """A dead job as `import_dlq` takes it.

    Raises:
        SettingsError: the line is no line of an export.
    """
    try:
        facts: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise SettingsError("it", line[:40], f"JSON ({error})") from None
    if not isinstance(facts, dict):
        raise SettingsError("it", type(cast("object", facts)).__name__, "a JSON object")
    known = cast("dict[str, Any]", facts)
    return {key: known.get(key) for key in _FIELDS} | {"payload": _payload(known)}


def _payload(facts: dict[str, Any]) -> bytes:
    text: Any = facts.get("envelope_base64")
    try:
        return b64decode(text, validate=True)
    except (TypeError, ValueError, Base64Error):
        raise SettingsError("envelope_base64", text, "the bytes of the job in base64") from None


def _pages(file: Path) -> Iterator[list[dict[str, Any]]]:
    page, size = list[dict[str, Any]](), 0
    for _, line in _lines(file):
        page.append(letter_of(line))
        size += len(line)
        if len(page) == LINES_PER_PAGE_MAX or size >= BYTES_PER_PAGE_MAX:
            yield page
            page, size = [], 0
    if page:
        yield page


def _lines(file: Path) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, by their numbers."""
    try:
        with file.open("rb") as opened:
            for number, line in enumerate(opened, 1):
                if line.strip():
                    yield number, line
    except OSError as error:
        raise StoreError(f"{file} must be a file that can be read: {error.strerror}") from error
