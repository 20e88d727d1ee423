"""`chasqui delayed`: jobs that wait for their time, listed or taken back."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from chasquimq.cli.asking import confirm
from chasquimq.cli.listing import emit_list
from chasquimq.cli.main import Group
from chasquimq.cli.moment import iso
from chasquimq.cli.options import (
    json_option,
    limit_option,
    queue_argument,
    redis_url_option,
    yes_option,
)
from chasquimq.cli.render import emit_json, emit_table
from chasquimq.cli.server_choice import running_server
from chasquimq.cli.visit import ask

if TYPE_CHECKING:
    from chasquimq.model.snapshot import DelayedJob


@click.group(cls=Group)
def delayed() -> None:
    """List delayed jobs and retries, or cancel some of them."""


@delayed.command("list")
@queue_argument
@limit_option(20, "How many to show, soonest first.")
@redis_url_option
@json_option
def list_(queue: str, limit: int, redis_url: str | None, as_json: bool) -> None:
    """List the delayed jobs of QUEUE that are due first, and why each waits.

    Retries are among them, and jobs whose name no worker has a handler for: those are put back
    again and again.
    """
    url = running_server(redis_url)
    jobs = ask(queue, url, lambda seen: seen.inspector.delayed(queue, limit))
    row = partial(_row, queue=queue)
    emit_list(
        jobs, as_json, facts=_facts, row=row, nothing="nothing is delayed",
        text=("name", "waits for"), optional=("bytes", "attempt"),
    )  # fmt: skip


@delayed.command()
@queue_argument
@click.argument("job_ids", nargs=-1, required=True, metavar="JOB_ID...")
@yes_option
@redis_url_option
@json_option
def cancel(
    queue: str, job_ids: tuple[str, ...], is_sure: bool, redis_url: str | None, as_json: bool
) -> int:
    """Remove delayed jobs of QUEUE before they are due; exit code 1 if one was not there."""
    url = running_server(redis_url)
    if not is_sure:
        confirm(f"cancel {len(job_ids)} jobs of {queue}? they will never run")
    answers = ask(queue, url, lambda seen: seen.queue.cancel_delayed_bulk(job_ids))
    outcomes = dict(zip(job_ids, answers, strict=True))
    if as_json:
        emit_json({"cancelled": outcomes})
    else:
        states = {True: "cancelled", False: "not found"}
        rows = [{"job": job_id, "state": states[was]} for job_id, was in outcomes.items()]
        emit_table(rows, has_header=False)
    return 0 if all(answers) else 1


def _facts(job: DelayedJob) -> dict[str, Any]:
    return {
        "job_id": job.job_id,
        "name": job.name,
        "due_ms": job.due_ms,
        "attempt": job.attempt,
        "bytes": job.member_bytes,
        "waits_for": job.waits_for,
        "waits_since_ms": job.waits_since_ms,
        "waits_until_ms": job.waits_until_ms,
    }


def _row(job: DelayedJob, queue: str) -> dict[str, Any]:
    return {
        f"delayed: {queue}": job.job_id or "(cannot be read)",
        "name": job.name or None,
        "due": iso(job.due_ms),
        "waits for": _reason(job),
        "attempt": job.attempt,
        "bytes": job.member_bytes,
    }


def _reason(job: DelayedJob) -> str:
    """Why it does not run now: nobody has its handler, an attempt failed, or its time has not come."""
    if job.waits_for is None:
        return "its retry" if job.attempt else "its time"
    until = f", until {iso(job.waits_until_ms)}" if job.waits_until_ms else ""
    return f"{job.waits_for} since {iso(job.waits_since_ms)}{until}"
