"""Shows the oldest entries of a DLQ, and all of them by reason and fingerprint."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from chasquimq.cli.context import (
    filter_options,
    json_option,
    limit_option,
    queue_argument,
    redis_url_option,
    run,
    running_server,
    visit,
)
from chasquimq.cli.output.render import (
    Row,
    clean,
    emit_json,
    emit_table,
    emit_text,
    json_text,
    mask_secrets,
)
from chasquimq.cli.output.tables import bounded_lines, cut, terminal_columns
from chasquimq.cli.output.terminal import progress_bar
from chasquimq.model.json_value import json_value

if TYPE_CHECKING:
    from chasquimq.queue.dlq import DeadLetter
    from chasquimq.queue.queue import Queue

Filters = Mapping[str, str | None]

# How much of the data is shown: enough to recognise a job. On a terminal, lines below the table.
DATA_CHARS_MAX = 400
_ERROR_LINES_MAX = 4
_DATA_LINES_MAX = 2
# Where a table has room for errors and data, too.
_WIDE_COLUMNS = 200
# Behind light entries may come heavy ones: a page has few enough that even those have room.
PAGE_MAX = 500
PAGE_FIRST = 100
PAGE_BYTES = 1024 * 1024
# Enough to see what went wrong, and no reason to wait.
GROUPED_MAX = 20_000
GROUPING_S_MAX = 5.0
GROUPS_SHOWN_MAX = 20
_COLUMNS = (
    "dlq id", "job id", "source_id", "name", "reason", "detail", "payload bytes", "data"
)  # fmt: skip
_EMPTY = dict.fromkeys(_COLUMNS) | {"dlq id": "(empty)"}


@click.command()
@queue_argument
@limit_option(20, "How many entries to show, oldest first.")
@filter_options
@click.option("--traceback", "has_tracebacks", is_flag=True, help="Show where each of them failed.")
@redis_url_option
@json_option
def peek(
    queue: str,
    limit: int,
    has_tracebacks: bool,
    redis_url: str | None,
    as_json: bool,
    **filters: str | None,
) -> None:
    """Show the oldest dead jobs of QUEUE, and all of them by reason and fingerprint.

    In JSON each entry has its whole data and its traceback.
    """
    peeked = run(peek_at(queue, running_server(redis_url), limit, filters))
    if as_json:
        _show_json(peeked)
    else:
        _show_tables(peeked, has_tracebacks=has_tracebacks)


class DlqGroup(NamedTuple):
    """What entries of one group have in common."""

    reason: str
    fingerprint: str | None


@dataclass
class Peeked:
    """The entries to show, and groups of the first `grouped` matches; of all if `is_complete`."""

    queue: str
    depth: int
    entries: list[DeadLetter] = field(default_factory=list["DeadLetter"])
    groups: Counter[DlqGroup] = field(default_factory=Counter["DlqGroup"])
    errors: dict[DlqGroup, str] = field(default_factory=dict["DlqGroup", str])
    is_complete: bool = True

    @property
    def grouped(self) -> int:
        return self.groups.total()


async def peek_at(queue: str, url: str, limit: int, filters: Filters) -> Peeked:
    """Read the oldest entries, and as many more as the groups may look at."""
    async with visit(queue, url) as seen:
        peeked = Peeked(queue, (await seen.inspector.snapshot(queue)).dlq_depth)
        until_s = time.monotonic() + GROUPING_S_MAX
        with progress_bar("reading the DLQ") as advance:
            async for page in pages(seen.queue, filters):
                for letter in page:
                    _take(peeked, letter, limit)
                advance(peeked.grouped, peeked.depth)
                is_over = peeked.grouped >= GROUPED_MAX or time.monotonic() > until_s
                if is_over and len(peeked.entries) >= limit:
                    peeked.is_complete = False
                    break
    return peeked


async def pages(
    queue: Queue, filters: Filters, limit: int | None = None
) -> AsyncIterator[list[DeadLetter]]:
    """The matching entries, oldest first, at most a page at a time."""
    after: str | None = None
    left, size = limit, PAGE_FIRST
    while left is None or left > 0:
        count = size if left is None else min(size, left)
        page = await queue.peek_dlq(count, after=after, **filters)
        if page:
            yield page
            after = page[-1]["dlq_id"]
        if len(page) < count:
            return
        left = None if left is None else left - len(page)
        size = _next_size(page)


def _next_size(page: Sequence[DeadLetter]) -> int:
    fitting = len(page) * PAGE_BYTES // max(1, sum(len(one["payload"]) for one in page))
    return max(1, min(PAGE_MAX, len(page) * 4, fitting))


def entry_facts(letter: DeadLetter) -> dict[str, Any]:
    """An entry for programs, without what it carries."""
    facts: dict[str, Any] = {
        key: value for key, value in letter.items() if key not in ("payload", "data")
    }
    return facts | {
        "detail": _masked(letter["detail"]),
        "error": _masked(letter["error"]),
        "traceback": _masked(letter["traceback"]),
        "payload_bytes": len(letter["payload"]),
    }


def data_facts(letter: DeadLetter) -> dict[str, Any]:
    """What the job carries, for programs; null where it cannot be decoded."""
    from chasquimq.queue.inspector import open_envelope

    contents = open_envelope(letter["payload"])
    data, is_decoded = (
        _as_json(contents.data) if contents and contents.is_decoded else (None, False)
    )
    return {"data": data, "is_decoded": is_decoded}


def _show_json(peeked: Peeked) -> None:
    emit_json(
        {
            "queue": peeked.queue,
            "depth": peeked.depth,
            "entries": [entry_facts(one) | data_facts(one) for one in peeked.entries],
            "grouped": peeked.grouped,
            "is_complete": peeked.is_complete,
            "groups": _groups(peeked),
        }
    )


def _show_tables(peeked: Peeked, *, has_tracebacks: bool = False) -> None:
    is_narrow = sys.stdout.isatty() and terminal_columns() < _WIDE_COLUMNS
    rows = list(map(_row, peeked.entries)) or [_EMPTY]
    entries = [_without(row, "detail", "data") for row in rows] if is_narrow else rows
    # The groups below show the reasons, too.
    optional = ("source_id", "payload bytes", "reason")
    emit_table(entries, text=("name", "detail", "data"), optional=optional)
    if is_narrow:
        _show_below(rows[: len(peeked.entries)])
    if has_tracebacks:
        _show_tracebacks(peeked.entries)
    click.echo()
    _show_groups(peeked, is_narrow=is_narrow)


def _show_below(rows: Sequence[Row]) -> None:
    """What says most needs most room: lines of their own, below the table."""
    for row in rows:
        _show_lines(f"{row['dlq id']}: {row['detail'] or '-'}", _ERROR_LINES_MAX)
        _show_lines(f"data: {row['data'] or '-'}", _DATA_LINES_MAX, indent="    ")


def _show_lines(text: str, lines_max: int, indent: str = "") -> None:
    for line in bounded_lines(clean(text), terminal_columns() - len(indent), lines_max):
        click.echo(indent + line)


def _show_tracebacks(letters: Sequence[DeadLetter]) -> None:
    for letter in letters:
        title = " ".join(filter(None, (letter["dlq_id"], letter["job_id"], letter["name"])))
        click.echo(f"\n{clean(title)}")
        emit_text(letter["traceback"] or "(no traceback is kept)", indent="  ")


def _show_groups(peeked: Peeked, *, is_narrow: bool) -> None:
    groups = list(map(_group_row, _groups(peeked)))
    shown = groups[:GROUPS_SHOWN_MAX] or [{"reason": "(no entries)", "count": 0}]
    if is_narrow:
        emit_table([_without(row, "an error of it") for row in shown])
        for row in filter(lambda one: one.get("an error of it"), shown):
            kind = row["fingerprint"] or row["reason"]
            _show_lines(f"{kind} {row['an error of it']}", _ERROR_LINES_MAX)
    else:
        emit_table(shown, text=("an error of it",))
    if len(groups) > GROUPS_SHOWN_MAX:
        click.echo(
            f"and {len(groups) - GROUPS_SHOWN_MAX:,} groups more; --json shows all", err=True
        )
    if not peeked.is_complete:
        of = f"the oldest {peeked.grouped:,} of {peeked.depth:,} entries"
        click.echo(f"these are the groups of {of}", err=True)


def _take(peeked: Peeked, letter: DeadLetter, limit: int) -> None:
    if len(peeked.entries) < limit:
        peeked.entries.append(letter)
    kind = DlqGroup(letter["reason"], letter["fingerprint"])
    peeked.groups[kind] += 1
    error = letter["error"] or letter["detail"]
    if error:
        peeked.errors.setdefault(kind, error)


def _row(letter: DeadLetter) -> dict[str, Any]:
    return {
        "dlq id": letter["dlq_id"],
        "job id": letter["job_id"],
        "source_id": letter["source_id"] or None,
        "name": letter["name"] or None,
        "reason": letter["reason"] or None,
        "detail": _masked(letter["detail"] or letter["error"]),
        "payload bytes": len(letter["payload"]),
        "data": _preview(letter),
    }


def _without(row: Row, *names: str) -> dict[str, Any]:
    return {name: cell for name, cell in row.items() if name not in names}


def _preview(letter: DeadLetter) -> str | None:
    """The beginning of the data as JSON; None where there is none to read."""
    facts = data_facts(letter)
    return cut(json_text(facts["data"]), DATA_CHARS_MAX) if facts["is_decoded"] else None


def _as_json(data: Any) -> tuple[Any, bool]:
    try:
        value = json_value(data)
        json_text(value)
    except RecursionError:
        # JSON goes less deep than MessagePack; the envelope still has it all.
        return None, False
    return value, True


def _groups(peeked: Peeked) -> list[dict[str, Any]]:
    return [
        {
            "reason": kind.reason,
            "count": count,
            "fingerprint": kind.fingerprint,
            "error": _masked(peeked.errors.get(kind)),
        }
        for kind, count in peeked.groups.most_common()
    ]


def _group_row(group: Row) -> dict[str, Any]:
    return {**_without(group, "error"), "an error of it": group["error"]}


def _masked(text: str | None) -> str | None:
    return text and mask_secrets(text)
