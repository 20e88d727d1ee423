"""Writes dead jobs as JSON lines, and adds those of such a file to a queue again."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import click

from chasquimq.cli.context import (
    any_server,
    filter_options,
    json_option,
    queue_argument,
    redis_url_option,
    run,
    running_server,
    visit,
    yes_option,
)
from chasquimq.cli.dlq.peek import Filters, data_facts, entry_facts, pages
from chasquimq.cli.files import whole_file
from chasquimq.cli.output.render import clean, counted, emit_json, json_text
from chasquimq.cli.output.terminal import confirm, progress_bar
from chasquimq.cli.values import AT_LEAST_0
from chasquimq.errors import ChasquiError, SettingsError, StoreError

if TYPE_CHECKING:
    from chasquimq.queue.dlq import DeadLetter

Write = Callable[[str], None]


@click.command()
@queue_argument
@filter_options
@click.option(
    "--output",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write to this file.  [default: stdout]",
)
@click.option("--limit", type=AT_LEAST_0, help="How many entries at most.")
@redis_url_option
@click.option("--json", "as_json", is_flag=True, help="Taken for granted: lines are JSON anyway.")
def export(
    queue: str,
    output: Path | None,
    limit: int | None,
    redis_url: str | None,
    as_json: bool,
    **filters: str | None,
) -> None:
    """Write the dead jobs of QUEUE as JSON lines, with their data decoded where possible."""
    run(export_all(queue, running_server(redis_url), filters, limit, output))


async def export_all(
    queue: str, url: str, filters: Filters, limit: int | None, output: Path | None
) -> None:
    """Write every match, oldest first; how many goes to stderr."""
    async with visit(queue, url) as seen:
        depth = (await seen.inspector.snapshot(queue)).dlq_depth
        written = 0
        with _lines_to(output) as write, progress_bar("exporting") as advance:
            async for page in pages(seen.queue, filters, limit):
                for letter in page:
                    write(json_text(export_facts(letter)))
                written += len(page)
                advance(written, depth)
    click.echo(f"exported {counted(written, 'entry', 'entries')}", err=True)


def export_facts(letter: DeadLetter) -> dict[str, Any]:
    """One line: all that is known of the entry, its data, and its envelope as it was buried."""
    from chasquimq.queue.inspector import open_envelope

    contents = open_envelope(letter["payload"])
    return {
        **entry_facts(letter),
        "created_at_ms": contents.created_at_ms if contents else None,
        **data_facts(letter),
        "envelope_base64": b64encode(letter["payload"]).decode(),
    }


@contextmanager
def _lines_to(output: Path | None) -> Generator[Write]:
    if output is None:
        yield click.echo
        return
    try:
        # Payloads may hold anything that its producers thought only workers would read.
        with whole_file(output, is_private=True) as file:
            yield lambda line: print(line, file=file)
    except OSError as error:
        raise StoreError(
            f"{output} must be a file that can be written: {error.strerror}"
        ) from error


LINES_PER_PAGE_MAX = 500
BYTES_PER_PAGE_MAX = 4 * 1024 * 1024
BAD_LINES_SHOWN_MAX = 3
_FIELDS = (
    "dlq_id", "source_id", "reason", "detail", "name", "attempt", "failed_at_ms", "error",
    "fingerprint", "traceback",
)  # fmt: skip


@click.command("import")
@queue_argument
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--as-jobs", is_flag=True, help="Not as dead jobs: let workers run them.")
@click.option("--dry-run", "is_dry", is_flag=True, help="Only check the file, and say how many.")
@yes_option
@redis_url_option
@json_option
def import_(
    *,
    queue: str,
    file: Path,
    as_jobs: bool,
    is_dry: bool,
    is_sure: bool,
    redis_url: str | None,
    as_json: bool,
) -> None:
    """Add the dead jobs of FILE, which `dlq export` wrote, to QUEUE, byte for byte.

    Every line is checked before the first is added. A job that is still in the DLQ, or was
    imported in the last 24 hours, is not added again, so it may be repeated. Asks first, unless
    --yes is given.
    """
    url = any_server(redis_url)
    done = run(import_all(queue, url, file, as_jobs=as_jobs, is_dry=is_dry, is_sure=is_sure))
    _show_import(done, is_dry=is_dry, as_jobs=as_jobs, as_json=as_json)


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
    if not count:
        return Import(count, 0, 0)
    if not (is_sure or is_dry):
        place = "to the workers" if as_jobs else "to the DLQ"
        confirm(f"add {counted(count, 'job')} from {clean(file.name)} {place} of {clean(queue)}?")
    added = known = 0
    async with visit(queue, url, must_exist=False) as seen:
        # A server that is not there is reported at once; what it holds does not matter.
        await seen.inspector.snapshot(queue)
        with progress_bar("checking" if is_dry else "importing") as advance:
            for page in _pages(file):
                done = await seen.queue.import_dlq(page, as_jobs=as_jobs, dry_run=is_dry)
                added, known = added + done, known + done.known
                advance(added + known, count)
    return Import(count, added, known)


def _show_import(done: Import, *, is_dry: bool, as_jobs: bool, as_json: bool) -> None:
    """Print what happened, or would."""
    if as_json:
        emit_json({**done._asdict(), "dry_run": is_dry, "as_jobs": as_jobs})
        return
    verb, count = ("would import", done.lines - done.known) if is_dry else ("imported", done.added)
    click.echo(f"{verb} {counted(count, 'job' if as_jobs else 'dead job')}")
    if done.known:
        click.echo(
            f"{done.known:,} of {done.lines:,} are known: still in the DLQ, or imported before; "
            "what was imported is refused for 24 h",
            err=True,
        )


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
    from chasquimq.queue.dlq import check_letter

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
