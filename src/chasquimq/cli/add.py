"""`chasqui add`: one job, from the command line, a pipe or a file."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chasquimq.cli.duration import DURATION
from chasquimq.cli.number import AT_LEAST_1
from chasquimq.cli.options import json_option, queue_argument, redis_url_option
from chasquimq.cli.render import clean, emit_json, talk
from chasquimq.cli.server_choice import any_server
from chasquimq.cli.visit import run, visit

if TYPE_CHECKING:
    from chasquimq.job import Job


@click.command()
@queue_argument
@click.argument("name")
@click.argument("data", default="null", metavar="[JSON|-|@FILE]")
@click.option("--delay", "delay_ms", type=DURATION, help="Run it that much later.")
@click.option("--job-id", help="An id of your own; a second add of the id keeps the first job.")
@click.option("--attempts", type=AT_LEAST_1, help="How often it may run.")
@redis_url_option
@json_option
def add(
    queue: str,
    name: str,
    data: str,
    delay_ms: int | None,
    job_id: str | None,
    attempts: int | None,
    redis_url: str | None,
    as_json: bool,
) -> None:
    """Add a job called NAME to QUEUE and print its id.

    Its data is JSON: as an argument, from stdin with -, or from a file with @FILE. A server for
    this directory is started where there is none.
    """
    value = read_json(data)
    options = {"delay_ms": delay_ms, "job_id": job_id, "attempts": attempts}
    added = run(_add(queue, any_server(redis_url), name, value, options))
    if not name.strip():
        talk(
            "the job has no name: only a worker with one handler for every name, or for '', runs it"
        )
    if added.is_duplicate:
        click.echo("a job of this id was added before and is kept", err=True)
    if as_json:
        emit_json({"job_id": added.id, "queue": queue, "is_duplicate": added.is_duplicate})
    else:
        click.echo(clean(added.id))


async def _add(queue: str, url: str, name: str, value: Any, options: dict[str, Any]) -> Job:
    async with visit(queue, url, must_exist=False) as seen:
        return await seen.queue.add(name, value, **options)


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
