"""Adds one job, or shows one."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from chasquimq.cli.app import Group
from chasquimq.cli.context import (
    any_server,
    json_option,
    queue_argument,
    redis_url_option,
    run,
    running_server,
    visit,
)
from chasquimq.cli.output.progress import behind_bar
from chasquimq.cli.output.render import (
    clean,
    emit_json,
    emit_table,
    emit_text,
    json_text,
    mask_secrets,
    talk,
)
from chasquimq.cli.values import AT_LEAST_1, DURATION, INSTANT, iso
from chasquimq.errors import LimitExceeded
from chasquimq.model.json_value import json_value

if TYPE_CHECKING:
    from chasquimq.job import Job
    from chasquimq.model.snapshot import JobState
    from chasquimq.queue.inspector import Contents

MAX_DELAY = "30d"


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
        added = run(_add(queue, any_server(redis_url), name, value, options, max_delay_s))
    except LimitExceeded as refused:
        raise _with_our_words(refused) from None
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


async def _add(
    queue: str, url: str, name: str, value: Any, options: dict[str, Any], max_delay_s: int
) -> Job:
    async with visit(queue, url, must_exist=False, max_delay_secs=max_delay_s) as seen:
        return await seen.queue.add(name, value, **options)


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


DATA_CHARS_MAX = 4_096
EXIT_UNKNOWN = 1
_TOLD_ELSEWHERE = frozenset({"data", "has_result", "is_decoded", "scanned_all", "traceback"})


class FoundJob(NamedTuple):
    """All that is known of a job; `contents` are read where its state does not have them."""

    state: JobState
    contents: Contents | None
    result: Any


@click.group(cls=Group)
def job() -> None:
    """Show one job."""


@job.command()
@queue_argument
@click.argument("job_id")
@redis_url_option
@json_option
def show(queue: str, job_id: str, redis_url: str | None, as_json: bool) -> int:
    """Show where job JOB_ID of QUEUE is, what it carries and what became of it.

    Exit code 1 when nothing is known of it: it never was, or it ended and nothing is kept of it.
    """
    found = run(_find(queue, job_id, running_server(redis_url)))
    facts = _facts(found)
    if as_json:
        emit_json(facts)
    else:
        _show(facts)
    return EXIT_UNKNOWN if found.state.state == "unknown" else 0


async def _find(queue: str, job_id: str, url: str) -> FoundJob:
    async with visit(queue, url) as seen:
        # A person who asks may wait for a search of everything.
        looking = seen.queue.get_job(job_id, max_scanned_bytes=None)
        state = await behind_bar("looking for the job", looking)
        contents = None if state.is_decoded else await seen.inspector.contents(queue, state)
        return FoundJob(state, contents, await seen.queue.get_job_result(job_id))


def _facts(found: FoundJob) -> dict[str, Any]:
    state = found.state
    known = {key: value for key, value in asdict(state).items()
             if value is not None and key not in _TOLD_ELSEWHERE}  # fmt: skip
    if state.state == "unknown":
        known["scanned_all"] = state.scanned_all
    if state.state == "completed":
        known["has_result"] = state.has_result
    known |= _data(found)
    if found.result is not None:
        known["result"] = json_value(found.result)
    if state.traceback is not None:
        known["traceback"] = mask_secrets(state.traceback)
    return known


def _data(found: FoundJob) -> dict[str, Any]:
    if found.state.is_decoded:
        return {"data": json_value(found.state.data)}
    if found.contents is None:
        return {}
    if not found.contents.is_decoded:
        return {"payload": json_value(found.contents.payload)}
    return {"data": json_value(found.contents.data)}


def _show(facts: dict[str, Any]) -> None:
    """A table, and what has lines of its own below it."""
    emit_table(_rows({key: value for key, value in facts.items() if key != "traceback"}),
               has_header=False)  # fmt: skip
    if "traceback" in facts:
        click.echo()
        emit_text(facts["traceback"])


def _rows(facts: dict[str, Any]) -> list[dict[str, str]]:
    return [{"name": _label(key), "value": _shown(key, value)} for key, value in facts.items()]


def _label(key: str) -> str:
    return key.removesuffix("_ms").removesuffix("_us").removesuffix("_at").replace("_", " ")


def _shown(key: str, value: Any) -> str:
    if key == "duration_us":
        return f"{value / 1000:,.1f} ms" if value < 1_000_000 else f"{value / 1e6:,.1f} s"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if key.endswith("_ms"):
        return iso(value)
    if isinstance(value, str) and key not in ("data", "result", "payload"):
        return mask_secrets(value)
    text = json_text(value)
    return text if len(text) <= DATA_CHARS_MAX else f"{text[:DATA_CHARS_MAX]}… (--json shows all)"
