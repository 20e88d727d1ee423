"""Sends dead jobs back: first finds which, then asks, then moves them at the pace asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from chasquimq.cli.asking import confirm
from chasquimq.cli.progress import Advance, behind_bar, progress_bar
from chasquimq.cli.render import emit_json
from chasquimq.cli.visit import visit

if TYPE_CHECKING:
    from chasquimq.queue import Queue

CHUNK_MAX = 100
CHUNK_S = 0.5


class Request(NamedTuple):
    """What was asked for."""

    queue: str
    limit: int
    ids: Sequence[str] | None
    filters: Mapping[str, Any]
    is_dry: bool
    is_sure: bool
    max_rate: float | None

    @property
    def most(self) -> int:
        return len(set(self.ids)) if self.ids is not None else self.limit


class Answer(NamedTuple):
    """What became of it; `ids` were found among `depth` entries, `replayed` of them moved."""

    depth: int
    replayed: int
    ids: list[str]
    skipped: int


async def replay_all(request: Request, url: str) -> Answer:
    """Find, ask, move."""
    async with visit(request.queue, url) as seen:
        depth = (await seen.inspector.snapshot(request.queue)).dlq_depth
        looking = seen.queue.replay_dlq(
            request.most, ids=request.ids, dry_run=True, **request.filters
        )
        found = await behind_bar("reading the DLQ", looking)
        if request.is_dry or not found.ids:
            return Answer(depth, 0, found.ids, found.skipped)
        if not request.is_sure:
            confirm(f"send {len(found.ids):,} dead jobs of {request.queue} back to their workers?")
        with progress_bar("replaying") as advance:
            replayed = await _replay(seen.queue, found.ids, request.max_rate, advance)
        return Answer(depth, replayed, found.ids, found.skipped)


def show(answer: Answer, request: Request, as_json: bool) -> None:
    """Print what happened, or would."""
    if as_json:
        emit_json({**answer._asdict(), "limit": request.most, "dry_run": request.is_dry})
        return
    if answer.skipped:
        click.echo(f"{answer.skipped:,} entries cannot be decoded and stay", err=True)
    if request.is_dry:
        click.echo(f"would replay {len(answer.ids)} of {answer.depth} entries")
    else:
        click.echo(f"replayed {answer.replayed} of {answer.depth} entries")


async def _replay(
    queue: Queue, ids: Sequence[str], max_rate: float | None, advance: Advance
) -> int:
    loop = asyncio.get_running_loop()
    started_s, replayed = loop.time(), 0
    size = _chunk_size(max_rate)
    for at in range(0, len(ids), size):
        chunk = ids[at : at + size]
        replayed += await queue.replay_dlq(len(chunk), ids=chunk, max_rate=max_rate)
        done = at + len(chunk)
        advance(done, len(ids))
        if max_rate is not None and done < len(ids):
            # Each call paces itself; between two of them this does.
            await asyncio.sleep(max(0.0, started_s + done / max_rate - loop.time()))
    return replayed


def _chunk_size(max_rate: float | None) -> int:
    if max_rate is None:
        return CHUNK_MAX
    return max(1, min(CHUNK_MAX, int(max_rate * CHUNK_S)))
