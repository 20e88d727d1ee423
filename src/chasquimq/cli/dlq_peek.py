"""The oldest entries of a DLQ, and all of them by reason and fingerprint."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from chasquimq.cli.progress import progress_bar
from chasquimq.cli.render import emit_json, emit_table, mask_secrets
from chasquimq.cli.visit import visit

if TYPE_CHECKING:
    from chasquimq.queue import Queue
    from chasquimq.queue.dead_letters import DeadLetter

Filters = Mapping[str, str | None]

DETAIL_BYTES_MAX = 60
CUT_MARK = "…"
# Behind light entries may come heavy ones: a page has few enough that even those have room.
PAGE_MAX = 500
PAGE_FIRST = 100
PAGE_BYTES = 1024 * 1024
# Enough to see what went wrong, and no reason to wait.
GROUPED_MAX = 20_000
GROUPING_S_MAX = 5.0
GROUPS_SHOWN_MAX = 20
_COLUMNS = ("dlq id", "job id", "source_id", "name", "reason", "detail", "payload bytes")
_EMPTY = dict.fromkeys(_COLUMNS) | {"dlq id": "(empty)"}


class Kind(NamedTuple):
    """What entries of one group have in common."""

    reason: str
    fingerprint: str | None


@dataclass
class Peeked:
    """The entries to show, and groups of the first `grouped` matches; of all if `is_complete`."""

    queue: str
    depth: int
    entries: list[DeadLetter] = field(default_factory=list["DeadLetter"])
    groups: Counter[Kind] = field(default_factory=Counter["Kind"])
    errors: dict[Kind, str] = field(default_factory=dict["Kind", str])
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
    """An entry for programs, without its payload."""
    facts: dict[str, Any] = {key: value for key, value in letter.items() if key != "payload"}
    return facts | {
        "detail": _masked(letter["detail"]),
        "error": _masked(letter["error"]),
        "payload_bytes": len(letter["payload"]),
    }


def show_json(peeked: Peeked) -> None:
    emit_json(
        {
            "queue": peeked.queue,
            "depth": peeked.depth,
            "entries": list(map(entry_facts, peeked.entries)),
            "grouped": peeked.grouped,
            "is_complete": peeked.is_complete,
            "groups": _group_rows(peeked),
        }
    )


def show_tables(peeked: Peeked) -> None:
    entries = list(map(_row, peeked.entries)) or [_EMPTY]
    # The groups below tell the reasons, too.
    optional = ("source_id", "payload bytes", "reason")
    emit_table(entries, text=("name", "detail"), optional=optional)
    click.echo()
    groups = _group_rows(peeked)
    shown = groups[:GROUPS_SHOWN_MAX] or [{"reason": "(no entries)", "count": 0}]
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
    kind = Kind(letter["reason"], letter["fingerprint"])
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
        "detail": _cut(_masked(letter["detail"] or letter["error"])),
        "payload bytes": len(letter["payload"]),
    }


def _group_rows(peeked: Peeked) -> list[dict[str, Any]]:
    return [
        {
            "reason": kind.reason,
            "count": count,
            "fingerprint": kind.fingerprint,
            "an error of it": _cut(_masked(peeked.errors.get(kind))),
        }
        for kind, count in peeked.groups.most_common()
    ]


def _masked(text: str | None) -> str | None:
    return text and mask_secrets(text)


def _cut(text: str | None) -> str | None:
    """At most 60 bytes, never half a character."""
    raw = (text or "").encode(errors="replace")
    if len(raw) <= DETAIL_BYTES_MAX:
        return text
    return raw[:DETAIL_BYTES_MAX].decode(errors="ignore") + CUT_MARK
