"""Deletes dead jobs for good, after the queue's name was typed or --yes given."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import click

from chasquimq.cli.asking import confirm_name
from chasquimq.cli.duration import duration_text
from chasquimq.cli.progress import progress_bar
from chasquimq.cli.render import clean, emit_json
from chasquimq.cli.visit import Visit, visit

LOOK_S = 0.25


async def purge_all(queue: str, url: str, meant: Mapping[str, Any], is_sure: bool) -> int:
    """Ask, then delete; without filters every entry is meant."""
    async with visit(queue, url) as seen:
        depth = (await seen.inspector.snapshot(queue)).dlq_depth
        if not is_sure:
            confirm_name(_question(queue, depth, meant), queue)
        return await _purge(seen, queue, depth, meant)


def show(removed: int, as_json: bool) -> None:
    """Print how many are gone."""
    if as_json:
        emit_json({"purged": removed})
    else:
        click.echo(f"purged {removed} entries")


async def _purge(seen: Visit, queue: str, depth: int, meant: Mapping[str, Any]) -> int:
    purging = asyncio.ensure_future(seen.queue.purge_dlq(**meant, all=not meant))
    try:
        with progress_bar("purging") as advance:
            while not (await asyncio.wait([purging], timeout=LOOK_S))[0]:
                left = (await seen.inspector.snapshot(queue)).dlq_depth
                # With filters nobody knows how many will go.
                advance(max(0, depth - left), 0 if meant else depth)
    finally:
        purging.cancel()
    return await purging


def _question(queue: str, depth: int, meant: Mapping[str, Any]) -> str:
    if not meant:
        return f"all {depth:,} dead jobs of {clean(queue)} will be deleted for good"
    filters = ", ".join(_filter_text(name, value) for name, value in meant.items())
    return f"the dead jobs of {clean(queue)} with {clean(filters)} will be deleted for good"


def _filter_text(name: str, value: Any) -> str:
    if name == "older_than_ms":
        return f"an age over {duration_text(value)}"
    return f"{name} {', '.join(value) if name == 'ids' else value}"
