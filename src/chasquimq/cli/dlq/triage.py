"""Shows dead jobs by what went wrong: how many, since when, and what they cost."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from chasquimq.cli.dlq.peek import Filters, pages
from chasquimq.cli.dlq.select import refuse_unknown_reason
from chasquimq.cli.output.render import clean, emit_json, emit_table, mask_secrets, talk
from chasquimq.cli.output.tables import terminal_columns, wrapped
from chasquimq.cli.output.terminal import progress_bar
from chasquimq.cli.pipeline.options import lake_option, refuse_named_lake
from chasquimq.cli.values import AT_LEAST_1
from chasquimq.errors import ChasquiError
from chasquimq.model.delivery import fingerprint

if TYPE_CHECKING:
    from chasquimq.queue.dlq import DeadLetter

NAMES_SHOWN_MAX = 3
# Where a table has room for errors, too.
_WIDE_COLUMNS = 160
# What a replay sends back where no limit is given.
REPLAYED_MAX = 100


@click.command()
@queue_argument
@limit_option(20, "How many kinds to show, the most frequent first.", least=AT_LEAST_1)
@filter_options
@lake_option
@redis_url_option
@json_option
def triage(
    queue: str,
    limit: int,
    lake: Path,
    redis_url: str | None,
    as_json: bool,
    **filters: str | None,
) -> None:
    """Show all dead jobs of QUEUE by what went wrong: how many, since when, at what cost.

    How long their attempts ran is known where a pipeline fills the lake.
    """
    refuse_named_lake(lake)
    kinds = run(triage_all(queue, running_server(redis_url), filters, lake))
    _show(kinds, queue, limit, as_json)


@dataclass
class FailureKind:
    """Dead jobs of one fingerprint; `burnt_s` is None where no table knows it."""

    fingerprint: str
    jobs: int = 0
    attempts: int = 0
    first_ms: int = 2**63
    last_ms: int = 0
    names: Counter[str] = field(default_factory=Counter[str])
    reasons: Counter[str] = field(default_factory=Counter[str])
    error: str | None = None
    burnt_s: float | None = None
    # Whether the entries have it themselves, so that filters find them by it.
    is_written: bool = True

    def take(self, letter: DeadLetter) -> None:
        self.jobs += 1
        self.attempts += letter["attempt"] or 0
        self.first_ms = min(self.first_ms, letter["failed_at_ms"])
        self.last_ms = max(self.last_ms, letter["failed_at_ms"])
        self.names[letter["name"]] += 1
        self.reasons[letter["reason"]] += 1
        self.error = self.error or letter["error"] or letter["detail"]


async def triage_all(queue: str, url: str, filters: Filters, lake: Path) -> list[FailureKind]:
    """Every dead job by its fingerprint, the most frequent first."""
    kinds: dict[str, FailureKind] = {}
    async with visit(queue, url) as seen:
        depth, read = (await seen.inspector.snapshot(queue)).dlq_depth, 0
        with progress_bar("reading the DLQ") as advance:
            async for page in pages(seen.queue, filters):
                for letter in page:
                    key = _key(letter)
                    is_written = bool(letter["fingerprint"])
                    kinds.setdefault(key, FailureKind(key, is_written=is_written)).take(letter)
                read += len(page)
                advance(read, depth)
    if not kinds:
        refuse_unknown_reason(filters)
    for key, burnt_s in _burnt(queue, lake).items():
        if key in kinds:
            kinds[key].burnt_s = burnt_s
    return sorted(kinds.values(), key=lambda kind: (-kind.jobs, kind.fingerprint))


def _show(kinds: list[FailureKind], queue: str, limit: int, as_json: bool) -> None:
    if as_json:
        emit_json({"queue": queue, "kinds": [_facts(kind) for kind in kinds[:limit]]})
        return
    _show_kinds(kinds[:limit])
    if len(kinds) > limit:
        talk(f"and {len(kinds) - limit:,} kinds more; --limit shows them")
    if kinds and kinds[0].is_written:
        click.echo(f"\nsend a kind back: chasqui dlq replay {queue}{_choice(kinds[0])}")


def _show_kinds(kinds: list[FailureKind]) -> None:
    if not kinds:
        emit_table([{"fingerprint": "(no dead jobs)"}])
        return
    is_narrow = sys.stdout.isatty() and terminal_columns() < _WIDE_COLUMNS
    rows = [_short_row(kind) if is_narrow else _row(kind) for kind in kinds]
    emit_table(rows, text=("names", "an error of it"), optional=("reason", "attempts"))
    if is_narrow:
        _show_errors(kinds)


def _show_errors(kinds: list[FailureKind]) -> None:
    """What says most needs most room: a line each, below the table."""
    click.echo("\nan error of each:")
    for kind in kinds:
        line = f"{kind.fingerprint if kind.is_written else '-'}: {_error(kind) or '-'}"
        click.echo("\n".join(wrapped(clean(line), terminal_columns())))


def _choice(kind: FailureKind) -> str:
    """The options that mean all of a kind."""
    limit = f" --limit {kind.jobs}" if kind.jobs > REPLAYED_MAX else ""
    return f" --fingerprint {kind.fingerprint}{limit}"


def _key(letter: DeadLetter) -> str:
    # The original writes no fingerprint; what it says of the error makes one.
    known = letter["fingerprint"]
    return known or fingerprint(letter["reason"], letter["detail"] or letter["error"] or "")


def _burnt(queue: str, lake: Path) -> Mapping[str, float]:
    """Seconds that attempts of each fingerprint ran, where a lake knows the queue."""
    try:
        from chasquimq.spark.query.queries import Answers, has_tables

        if not has_tables(lake):
            return {}
        with Answers(lake) as answers:
            rows = answers.ask(
                "select fingerprint, sum(run_us) / 1e6 as burnt_s from gold_failures"
                " where queue = $queue group by fingerprint",
                queue=queue,
            )
    except (ImportError, ChasquiError) as error:
        talk(f"the tables cannot say how long the attempts ran: {error}")
        return {}
    return {row["fingerprint"]: row["burnt_s"] for row in rows if row["burnt_s"] is not None}


def _facts(kind: FailureKind) -> dict[str, Any]:
    return {
        "fingerprint": kind.fingerprint if kind.is_written else None,
        "jobs": kind.jobs,
        "attempts": kind.attempts,
        "burnt_s": kind.burnt_s,
        "first_seen": _moment(kind.first_ms).isoformat(),
        "last_seen": _moment(kind.last_ms).isoformat(),
        "names": dict(kind.names.most_common()),
        "reasons": dict(kind.reasons.most_common()),
        "error": _error(kind),
    }


def _short_row(kind: FailureKind) -> dict[str, Any]:
    moments = {"first seen": _short(kind.first_ms), "last seen": _short(kind.last_ms)}
    return {key: cell for key, cell in (_row(kind) | moments).items() if key != "an error of it"}


def _row(kind: FailureKind) -> dict[str, Any]:
    return {
        "fingerprint": kind.fingerprint if kind.is_written else None,
        "jobs": kind.jobs,
        "attempts": kind.attempts,
        "burnt": None if kind.burnt_s is None else _burnt_text(kind.burnt_s),
        "first seen": f"{_moment(kind.first_ms):%Y-%m-%d %H:%M:%S}",
        "last seen": f"{_moment(kind.last_ms):%Y-%m-%d %H:%M:%S}",
        "reason": ", ".join(kind.reasons),
        "names": _names(kind),
        "an error of it": _error(kind),
    }


def _names(kind: FailureKind) -> str:
    shown = [name for name, _ in kind.names.most_common(NAMES_SHOWN_MAX)]
    left = len(kind.names) - len(shown)
    return ", ".join(shown) + (f" and {left} more" if left else "")


def _error(kind: FailureKind) -> str | None:
    return kind.error and mask_secrets(kind.error)


def _short(ms: int) -> str:
    """A moment without what is the same as now."""
    moment, now = _moment(ms), datetime.now(UTC)
    if moment.date() == now.date():
        return f"{moment:%H:%M:%S}"
    return f"{moment:%m-%d %H:%M}" if moment.year == now.year else f"{moment:%Y-%m-%d}"


def _burnt_text(seconds: float) -> str:
    return f"{seconds * 1000:,.0f} ms" if seconds < 1 else f"{seconds:,.1f} s"


def _moment(ms: int) -> datetime:
    return datetime.fromtimestamp(min(max(ms, 0), 253_402_300_799_000) / 1000, UTC)
