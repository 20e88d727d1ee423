"""`chasqui watch`: shows again and again how much of a queue is where, with rates and an outlook."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from chasquimq.cli.commands.inspect import (
    count_workers,
    more_rows,
    snapshot_facts,
    snapshot_rows,
)
from chasquimq.cli.context import (
    count_option,
    group_option,
    json_option,
    queue_argument,
    redis_url_option,
    run,
    running_server,
    visit,
)
from chasquimq.cli.output.render import (
    clean,
    emit_json_line,
    emit_table,
    mask_secrets,
    shown,
    table_cells,
)
from chasquimq.cli.output.tables import Shape, can_redraw, make_table
from chasquimq.cli.values import AT_LEAST_1, iso
from chasquimq.errors import ConnectionLost

if TYPE_CHECKING:
    from chasquimq.model.forecast import Rates
    from chasquimq.model.snapshot import Snapshot, WorkerState
    from chasquimq.queue.inspector import Inspector

# How often workers are counted; looks that are a second apart may be a moment less than that.
_WORKERS_EVERY_S = 0.99
TOO_EARLY = "one more look is needed to say where it is going"


class WatchSample(NamedTuple):
    """What one tick shows; `error` says why the snapshot or the workers are old ones.

    `states` counts the workers; None where this user may not ask.
    """

    snapshot: Snapshot
    states: dict[WorkerState, int] | None
    before: Snapshot | None
    rates: Rates | None
    sentence: str | None
    error: str | None = None


Show = Callable[[WatchSample], None]


@click.command()
@queue_argument
@click.option(
    "--interval-ms",
    type=AT_LEAST_1,
    default=1_000,
    show_default=True,
    help="How long to wait between two looks.",
)
@group_option
@count_option
@redis_url_option
@json_option
def watch(
    queue: str,
    interval_ms: int,
    group: str,
    count: int | None,
    redis_url: str | None,
    as_json: bool,
) -> None:
    """Watch QUEUE change until Ctrl+C: depths, rates, and when its backlog will be done.

    In a pipe each look is a block of text; with --json it is one line.
    """
    url = running_server(redis_url)
    with _screen(interval_ms, as_json) as show:
        run(_watch(queue, group, url, interval_ms, count, show))


async def _watch(
    queue: str, group: str, url: str, interval_ms: int, count: int | None, show: Show
) -> None:
    async with visit(queue, url) as seen:
        done = 0
        async for look in watch_samples(seen.inspector, queue, group, interval_ms):
            show(look)
            done += 1
            if done == count:
                return


async def watch_samples(
    inspector: Inspector, queue: str, group: str, interval_ms: int
) -> AsyncIterator[WatchSample]:
    """One look after the other; after the first one, what gets no answer is shown as it was.

    Raises:
        ConnectionLost: the first look got no answer.
    """
    from chasquimq.model.forecast import Trend

    trend, workers = Trend(), _Workers(inspector, queue, group)
    loop = asyncio.get_running_loop()
    last: Snapshot | None = None
    while True:
        began_s = loop.time()
        now, error = last, None
        try:
            now = await inspector.snapshot(queue, group)
            await workers.refresh(began_s)
        except ConnectionLost as lost:
            if last is None or now is None:
                raise
            error = str(lost)
        if now is not last:
            trend.add(now)
        yield WatchSample(now, workers.states, last, trend.rates, trend.sentence, error)
        last = now
        await asyncio.sleep(max(0.0, began_s + interval_ms / 1000 - loop.time()))


class _Workers:
    """How many workers are in which state, counted at most once a second."""

    def __init__(self, inspector: Inspector, queue: str, group: str) -> None:
        self._inspector, self._queue, self._group = inspector, queue, group
        self._due_s = 0.0
        self.states: dict[WorkerState, int] | None = None

    async def refresh(self, now_s: float) -> None:
        """Count them again if it is time."""
        if now_s >= self._due_s:
            self._due_s = now_s + _WORKERS_EVERY_S
            self.states = await count_workers(self._inspector, self._queue, self._group)


@contextmanager
def _screen(interval_ms: int, as_json: bool) -> Generator[Show]:
    if as_json:
        yield _show_json
    elif can_redraw(sys.stdout):
        with _live(interval_ms) as show:
            yield show
    else:
        yield _show_plain


@contextmanager
def _live(interval_ms: int) -> Generator[Show]:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    def draw(look: WatchSample) -> None:
        moment = iso(look.snapshot.at_ms)
        head = f"{look.snapshot.queue}   every {interval_ms} ms   {moment}   Ctrl+C ends"
        names, cells = table_cells(watch_rows(look))
        table, _ = make_table(names, cells, console.width, Shape(text=names[:1]))
        if not live.is_started:
            console.clear()
            live.start()
        live.update(Group(Text(clean(head)), table, Text(_last_line(look))), refresh=True)

    console = Console()
    live = Live(console=console, auto_refresh=False)
    try:
        yield draw
    finally:
        # It hid the cursor, whatever ended the watch.
        live.stop()


def _show_plain(look: WatchSample) -> None:
    click.echo(f"{iso(look.snapshot.at_ms)}")
    rows = watch_rows(look)
    emit_table(rows, text=list(rows[0])[:1])
    click.echo(f"{_last_line(look)}\n")


def _show_json(look: WatchSample) -> None:
    rates = look.rates
    facts = snapshot_facts(look.snapshot) | {
        "workers": look.states,
        "added_per_s": _rounded(rates.added if rates else None),
        "left_per_s": _rounded(rates.left if rates else None),
        "growth_per_s": _rounded(rates.growth if rates else None),
        "outlook": look.sentence,
        "trouble": look.error and mask_secrets(look.error),
    }
    emit_json_line(facts)


def watch_rows(look: WatchSample) -> list[dict[str, Any]]:
    """The rows of `inspect`, with what changed since the look before, and rates."""
    rows = [
        *snapshot_rows(look.snapshot),
        *more_rows(look.snapshot, look.states),
        *_rate_rows(look),
    ]
    if look.before is None:
        return rows
    changes = _changes(look.snapshot, look.before)
    return [{**row, "Δ": changes.get(next(iter(row.values())), "-")} for row in rows]


def _changes(now: Snapshot, before: Snapshot) -> dict[str, str]:
    return {
        "stream depth": _signed(now.stream_depth - before.stream_depth),
        "pending": _signed(now.pending - before.pending),
        "DLQ depth": _signed(now.dlq_depth - before.dlq_depth),
        "delayed depth": _signed(now.delayed_depth - before.delayed_depth),
        "repeatable count": _signed(now.repeatable_count - before.repeatable_count),
    }


def _rate_rows(look: WatchSample) -> list[dict[str, Any]]:
    what, how_much = f"queue: {look.snapshot.queue}", f"group: {look.snapshot.group}"
    rates = look.rates
    return [
        {what: "added per second", how_much: _rate_text(rates.added if rates else None)},
        {what: "left per second", how_much: _rate_text(rates.left if rates else None)},
    ]


def _last_line(look: WatchSample) -> str:
    if look.error:
        return shown(look.error)
    return look.sentence or TOO_EARLY


def _rate_text(per_s: float | None) -> str | None:
    from chasquimq.model.forecast import rate_text

    return None if per_s is None else rate_text(per_s)


def _rounded(per_s: float | None) -> float | None:
    return None if per_s is None else round(per_s, 3)


def _signed(change: int) -> str:
    return f"{change:+d}" if change else "0"
