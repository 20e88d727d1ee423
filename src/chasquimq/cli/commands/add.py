"""`chasqui add`: adds one job."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Coroutine
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from chasquimq.cli.context import (
    Visit,
    any_server,
    json_option,
    queue_argument,
    redis_url_option,
    run,
    visit,
)
from chasquimq.cli.output.render import (
    clean,
    emit_json,
    talk,
)
from chasquimq.cli.values import AT_LEAST_1, DURATION, INSTANT
from chasquimq.errors import LimitExceeded, StoreError

if TYPE_CHECKING:
    from chasquimq.job import Job

T = TypeVar("T")

MAX_DELAY = "30d"
# How long each question about similar queues may take; a busy server has millions of keys.
_HINT_S_MAX = 2.0
# A slip of a finger or two; less is another queue with a name of the same pattern.
_ALIKE_MIN = 0.8


@click.command()
@queue_argument
@click.argument("name")
@click.argument("data", default="null", metavar="[JSON|-|@FILE]")
@click.option("--delay", "delay_ms", type=DURATION, help="Run it that much later.")
@click.option("--at", "at", type=INSTANT, help="Run it at this time; UTC where no zone is given.")
@click.option(
    "--max-delay",
    "max_delay_ms",
    type=DURATION,
    default=MAX_DELAY,
    show_default=True,
    help="The longest delay that is taken for no mistake.",
)
@click.option("--job-id", help="An id of your own; a second add of the id keeps the first job.")
@click.option("--attempts", type=AT_LEAST_1, help="How often it may run.")
@redis_url_option
@json_option
def add(
    *,
    queue: str,
    name: str,
    data: str,
    delay_ms: int | None,
    at: datetime | None,
    max_delay_ms: int,
    job_id: str | None,
    attempts: int | None,
    redis_url: str | None,
    as_json: bool,
) -> None:
    """Add a job called NAME to QUEUE and print its id.

    Its data is JSON: as an argument, from stdin with -, or from a file with @FILE. A server for
    this directory is started where there is none.
    """
    if delay_ms is not None and at is not None:
        raise click.UsageError("--delay and --at name two times; give one")
    value = read_json(data)
    due = delay_ms if at is None else at
    options = {"delay_ms": due, "job_id": job_id, "attempts": attempts}
    max_delay_s = max(1, -(-max_delay_ms // 1000))
    try:
        added, similar = run(_add(queue, any_server(redis_url), name, value, options, max_delay_s))
    except LimitExceeded as refused:
        raise _with_our_words(refused) from None
    if not name.strip():
        talk(
            "the job has no name: only a worker with one handler for every name, or for '', runs it"
        )
    if similar:
        talk(
            f"warning: there was no queue named {queue!r}, so it was made; did you mean "
            f"{' or '.join(map(repr, similar))}?"
        )
    if added.is_duplicate:
        click.echo("a job of this id was added before and is kept", err=True)
    if as_json:
        emit_json({"job_id": added.id, "queue": queue, "is_duplicate": added.is_duplicate})
    else:
        click.echo(clean(added.id))


async def _add(
    queue: str, url: str, name: str, value: Any, options: dict[str, Any], max_delay_s: int
) -> tuple[Job, list[str]]:
    """The job, and the queues with similar names where its own was made for it."""
    async with visit(queue, url, must_exist=False, max_delay_secs=max_delay_s) as seen:
        found = await _for_hint(seen.inspector.snapshot(queue))
        job = await seen.queue.add(name, value, **options)
        if found is None or found.exists:
            return job, []
        return job, await _similar_queues(seen, queue)


async def _similar_queues(seen: Visit, queue: str) -> list[str]:
    """The other queues with names like this one, of all servers that answer."""
    names = await _for_hint(seen.inspector.queues(on_missed=lambda _: None))
    return get_close_matches(
        queue, [name for name in names or () if name != queue], cutoff=_ALIKE_MIN
    )


async def _for_hint(question: Coroutine[Any, Any, T]) -> T | None:
    """The answer if it comes soon: no right, no silence and no lost server may stop an add."""
    try:
        async with asyncio.timeout(_HINT_S_MAX):
            return await question
    except (StoreError, TimeoutError):
        return None


def _with_our_words(refused: LimitExceeded) -> LimitExceeded:
    """The way beyond the cap is an option here, and not a setting."""
    if refused.name != "delay":
        return refused
    hint = "a longer one is allowed by --max-delay, such as --max-delay 365d"
    return LimitExceeded(refused.name, refused.found, refused.rule, hint=hint)


def read_json(given: str) -> Any:
    """The value of an argument, of stdin or of a file; what is no JSON is wrong usage."""
    try:
        text = _bytes(given).decode()
        return json.loads(text)
    except OSError as error:
        _refuse(f"{given[1:]!r} cannot be read: {error.strerror}")
    except UnicodeDecodeError as error:
        _refuse(f"the data must be UTF-8; byte {error.start} is not")
    except json.JSONDecodeError as error:
        _refuse(f"the data must be JSON: {error}; text needs its quotes, as in '\"text\"'")
    except RecursionError:
        _refuse("the data must be JSON that is not nested this deeply")


def _bytes(given: str) -> bytes:
    if given == "-":
        return sys.stdin.buffer.read()
    if given.startswith("@"):
        return Path(given[1:]).read_bytes()
    # The bytes as they were typed, even where they are no UTF-8.
    return given.encode(errors="surrogateescape")


def _refuse(why: str) -> None:
    raise click.UsageError(why)
