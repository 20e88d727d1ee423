"""`chasqui drain`: empties a queue of the jobs that wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import click

from chasquimq.cli.context import (
    json_option,
    queue_argument,
    redis_url_option,
    run,
    running_server,
    visit,
    yes_option,
)
from chasquimq.cli.output.render import clean, emit_json
from chasquimq.cli.output.terminal import behind_bar, confirm_name

if TYPE_CHECKING:
    from chasquimq.queue.queue import Queue


class Drain(NamedTuple):
    """What was removed, or would be; `running` jobs go on."""

    ready: int
    delayed: int
    running: int


@click.command()
@queue_argument
@click.option("--delayed", "has_delayed", is_flag=True, help="Delayed jobs and retries, too.")
@click.option("--dry-run", "is_dry", is_flag=True, help="Only show how many would be removed.")
@yes_option
@redis_url_option
@json_option
def drain(
    queue: str,
    has_delayed: bool,
    is_dry: bool,
    is_sure: bool,
    redis_url: str | None,
    as_json: bool,
) -> None:
    """Empty QUEUE: remove the jobs that wait. Running jobs go on; dead jobs and plans stay.

    Asks for the name of the queue, unless --yes is given. Workers may run meanwhile. What is
    removed is gone for good, and ids of its own are free again.
    """
    done = run(_drain(queue, running_server(redis_url), has_delayed, is_dry, is_sure))
    if as_json:
        emit_json({"queue": queue, "dry_run": is_dry, **done._asdict()})
    else:
        click.echo(clean(_sentence(done, has_delayed, is_dry)))


async def _drain(queue: str, url: str, has_delayed: bool, is_dry: bool, is_sure: bool) -> Drain:
    async with visit(queue, url) as seen:
        meant = await _meant(seen.queue, has_delayed)
        if is_dry:
            return meant
        if not is_sure:
            confirm_name(f"{_jobs(meant, has_delayed)} of {clean(queue)} will be removed", queue)
        removed = await behind_bar("draining", seen.queue.drain(delayed=has_delayed))
        after = await seen.queue.counts()
        return Drain(removed.ready, removed.delayed, after.running)


async def _meant(queue: Queue, has_delayed: bool) -> Drain:
    counts = await queue.counts()
    return Drain(counts.ready, counts.delayed if has_delayed else 0, counts.running)


def _sentence(done: Drain, has_delayed: bool, is_dry: bool) -> str:
    verb = "would remove" if is_dry else "removed"
    said = f"{verb} {_jobs(done, has_delayed)}"
    if done.running:
        said += f"; {done.running:,} held by workers {'go' if done.running > 1 else 'goes'} on"
    return said


def _jobs(done: Drain, has_delayed: bool) -> str:
    kinds: list[Any] = [f"{done.ready:,} ready"]
    kinds += [f"{done.delayed:,} delayed"] if has_delayed else []
    total = done.ready + done.delayed
    return f"{' and '.join(kinds)} {'job' if total == 1 else 'jobs'}"
