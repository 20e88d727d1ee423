"""`chasqui job show`: where one job is, and what it carries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

from chasquimq.cli.moment import iso
from chasquimq.cli.options import json_option, queue_argument, redis_url_option
from chasquimq.cli.progress import behind_bar
from chasquimq.cli.render import emit_json, emit_table, json_text, mask_secrets
from chasquimq.cli.server_choice import running_server
from chasquimq.cli.visit import run, visit
from chasquimq.model.json_value import json_value

if TYPE_CHECKING:
    from chasquimq.inspector import Contents
    from chasquimq.model.job_state import JobState

DATA_CHARS_MAX = 4_096
EXIT_UNKNOWN = 1


class Found(NamedTuple):
    """All that is known of a job."""

    state: JobState
    contents: Contents | None
    result: Any


@click.group()
def job() -> None:
    """Show one job."""


@job.command()
@queue_argument
@click.argument("job_id")
@redis_url_option
@json_option
def show(queue: str, job_id: str, redis_url: str | None, as_json: bool) -> int:
    """Show where job JOB_ID of QUEUE is, what it carries and what became of it.

    Exit code 1 when nothing is known of it: it never was, or it completed and left no result.
    """
    found = run(_find(queue, job_id, running_server(redis_url)))
    facts = _facts(found)
    if as_json:
        emit_json(facts)
    else:
        emit_table(_rows(facts), has_header=False)
    return EXIT_UNKNOWN if found.state.state == "unknown" else 0


async def _find(queue: str, job_id: str, url: str) -> Found:
    async with visit(queue, url) as seen:
        # A person who asks may wait for a search of everything.
        looking = seen.queue.get_job(job_id, max_scanned_bytes=None)
        state = await behind_bar("looking for the job", looking)
        contents = await seen.inspector.contents(queue, state)
        return Found(state, contents, await seen.queue.get_job_result(job_id))


def _facts(found: Found) -> dict[str, Any]:
    known = {key: value for key, value in msgspec.structs.asdict(found.state).items()
             if value is not None and key != "scanned_all"}  # fmt: skip
    if found.state.state == "unknown":
        known["scanned_all"] = found.state.scanned_all
    if found.contents is not None:
        known["created_at_ms"] = found.contents.created_at_ms
        known |= _data(found.contents)
    if found.result is not None:
        known["result"] = json_value(found.result)
    return known


def _data(contents: Contents) -> dict[str, Any]:
    if not contents.is_decoded:
        return {"payload": json_value(contents.payload)}
    return {"data": json_value(contents.data)}


def _rows(facts: dict[str, Any]) -> list[dict[str, str]]:
    return [{"name": _label(key), "value": _shown(key, value)} for key, value in facts.items()]


def _label(key: str) -> str:
    return key.removesuffix("_ms").replace("_", " ")


def _shown(key: str, value: Any) -> str:
    if key.endswith("_ms"):
        return iso(value)
    if isinstance(value, str) and key not in ("data", "result", "payload"):
        return mask_secrets(value)
    text = json_text(value)
    return text if len(text) <= DATA_CHARS_MAX else f"{text[:DATA_CHARS_MAX]}… (--json shows all)"
