"""`chasqui events`: follows what happens on a queue."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from chasquimq.cli.context import (
    count_option,
    json_option,
    queue_argument,
    redis_url_option,
    run,
    running_server,
    visit,
)
from chasquimq.cli.output.render import clean, emit_json_line, mask_secrets
from chasquimq.cli.output.tables import INDENT, cut, padded, terminal_columns, wrapped
from chasquimq.cli.values import iso

if TYPE_CHECKING:
    from chasquimq.queue_events import QueueEvent

# From here on there is room for columns; below it every character is needed.
ALIGNED_COLUMNS_MIN = 120
ENTRY_ID_COLUMNS = 17
EVENT_COLUMNS = 15


class Filter(NamedTuple):
    """Which events to show; None and an empty tuple ask for nothing."""

    events: tuple[str, ...]
    job_id: str | None
    job_name: str | None

    def matches(self, event: QueueEvent) -> bool:
        return (
            (not self.events or event.name in self.events)
            and self.job_id in (None, event.job_id)
            and self.job_name in (None, event.job_name)
        )


@click.command()
@queue_argument
@click.option(
    "--from",
    "from_id",
    default="$",
    show_default=True,
    metavar="ID",
    help="Where to begin: an entry id, 0 for all that is kept, $ for what comes from now on.",
)
@click.option("--event", "names", multiple=True, help="Only this kind; may be given twice.")
@click.option("--job", "job_id", metavar="ID", help="Only events of this job.")
@click.option("--name", "job_name", help="Only jobs of this name.")
@count_option
@redis_url_option
@json_option
def events(
    queue: str,
    from_id: str,
    names: tuple[str, ...],
    job_id: str | None,
    job_name: str | None,
    count: int | None,
    redis_url: str | None,
    as_json: bool,
) -> None:
    """Follow the events of QUEUE until Ctrl+C, a line each."""
    wanted = Filter(names, job_id, job_name)
    show = _show_json if as_json else _show_line
    run(_follow(queue, running_server(redis_url), from_id, wanted, count, show))


async def _follow(
    queue: str, url: str, from_id: str, wanted: Filter, count: int | None, show: Any
) -> None:
    from chasquimq.queue_events import QueueEvents

    async with (
        visit(queue, url, must_exist=False) as seen,
        QueueEvents(queue, redis_url=url, last_event_id=from_id) as tail,
    ):
        if not (await seen.inspector.snapshot(queue)).exists:
            click.echo(f"no queue named {clean(queue)} yet; waiting for its first event", err=True)
        shown = 0
        async for event in tail:
            if wanted.matches(event):
                show(event)
                shown += 1
            if shown == count:
                return


def _show_json(event: QueueEvent) -> None:
    emit_json_line(
        {
            "entry_id": event.entry_id,
            "event": event.name,
            "job_id": event.job_id,
            "name": event.job_name,
            **{key: _masked(value) for key, value in sorted(event.fields.items())},
        }
    )


def _show_line(event: QueueEvent) -> None:
    rest = {key: value for key, value in event.fields.items() if key != "ts"}
    words = [
        iso(event.ts_ms),
        event.entry_id,
        event.name or "-",
        f"id={event.job_id or '-'}",
        f"name={event.job_name or '-'}",
        *(f"{key}={_masked(value)}" for key, value in sorted(rest.items())),
    ]
    if not sys.stdout.isatty():
        click.echo(clean(" ".join(words)))
        return
    for line in _lines(list(map(clean, words)), terminal_columns()):
        click.echo(line)


def _lines(words: list[str], columns: int) -> list[str]:
    """A line, and indented ones below it where the terminal is narrow."""
    moment, entry_id, event, *rest = words
    if columns < ALIGNED_COLUMNS_MIN:
        return wrapped(_fitting(words, columns - len(INDENT)), columns)
    head = f"{moment} {padded(entry_id, ENTRY_ID_COLUMNS)} {padded(event, EVENT_COLUMNS)} "
    left = columns - len(head)
    first, *more = wrapped(_fitting(rest, left), left, indent="")
    return [head + first, *(" " * len(head) + line for line in more)]


def _fitting(words: list[str], columns: int) -> str:
    """The words with those cut that have no room on a line; ids are whole."""
    return " ".join(word if _is_id(word) else cut(word, columns) for word in words)


def _is_id(word: str) -> bool:
    """Whether a word is of no use without its end."""
    return word.startswith("id=") or "=" not in word


def _masked(value: Any) -> Any:
    return mask_secrets(value) if isinstance(value, str) else value
