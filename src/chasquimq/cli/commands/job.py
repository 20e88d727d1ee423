"""`chasqui job`: shows one job."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from chasquimq.cli.app import Group
from chasquimq.cli.context import (
    json_option,
    queue_argument,
    redis_url_option,
    run,
    running_server,
    visit,
)
from chasquimq.cli.output.render import (
    emit_json,
    emit_table,
    emit_text,
    json_text,
    mask_secrets,
)
from chasquimq.cli.output.terminal import behind_bar
from chasquimq.cli.values import iso
from chasquimq.model.json_value import json_value

if TYPE_CHECKING:
    from chasquimq.model.snapshot import JobState
    from chasquimq.queue.inspector import Contents

DATA_CHARS_MAX = 4_096
EXIT_UNKNOWN = 1
_SHOWN_ELSEWHERE = frozenset({"data", "has_result", "is_decoded", "scanned_all", "traceback"})


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
             if value is not None and key not in _SHOWN_ELSEWHERE}  # fmt: skip
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
