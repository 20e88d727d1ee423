"""`chasqui delayed`: lists or cancels jobs that wait for their time."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from chasquimq.cli.app import Group
from chasquimq.cli.context import (
    Visit,
    ask,
    json_option,
    limit_option,
    name_option,
    queue_argument,
    redis_url_option,
    running_server,
    yes_option,
)
from chasquimq.cli.output.render import clean, counted, emit_json, emit_list, emit_table
from chasquimq.cli.output.terminal import behind_bar, confirm, confirm_name
from chasquimq.cli.values import AT_LEAST_0, INSTANT, iso

if TYPE_CHECKING:
    from chasquimq.model.snapshot import DelayedJob
    from chasquimq.queue import Cancelled


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
@click.argument("job_ids", nargs=-1, metavar="[JOB_ID]...")
@name_option
@click.option("--id-prefix", help="Only jobs whose id begins so.")
@click.option("--due-after", type=INSTANT, help="Only jobs due at this time or later.")
@click.option("--due-before", type=INSTANT, help="Only jobs due before this time, such as 2h.")
@click.option("--limit", type=AT_LEAST_0, help="How many at most, soonest first.")
@click.option("--dry-run", "is_dry", is_flag=True, help="Only show what would be cancelled.")
@yes_option
@redis_url_option
@json_option
def cancel(
    *,
    queue: str,
    job_ids: tuple[str, ...],
    limit: int | None,
    is_dry: bool,
    is_sure: bool,
    redis_url: str | None,
    as_json: bool,
    **filters: Any,
) -> int:
    """Remove delayed jobs of QUEUE before they are due: those of the ids, or of the filters.

    Retries are delayed jobs, too. With ids the exit code is 1 if one was not there. With filters
    it asks for the name of the queue, unless --yes is given; times without a zone are UTC.
    """
    meant = {name: value for name, value in filters.items() if value is not None}
    has_options = bool(meant) or limit is not None or is_dry
    if bool(job_ids) == bool(meant) or (job_ids and has_options):
        raise click.UsageError("say what to cancel: either ids, or some filters")
    url = running_server(redis_url)
    if job_ids:
        return _cancel_ids(queue, job_ids, url, is_sure, as_json)
    done = ask(queue, url, partial(_cancel_where, meant=meant | {"limit": limit}, is_dry=is_dry, is_sure=is_sure))  # fmt: skip
    _show_cancelled(done, queue, is_dry, as_json)
    return 0


def _cancel_ids(
    queue: str, job_ids: tuple[str, ...], url: str, is_sure: bool, as_json: bool
) -> int:
    if not is_sure:
        confirm(
            f"cancel {counted(len(job_ids), 'job')} of {queue}? {'it' if len(job_ids) == 1 else 'they'} will never run"
        )
    answers = ask(queue, url, lambda seen: seen.queue.cancel_delayed_bulk(job_ids))
    outcomes = dict(zip(job_ids, answers, strict=True))
    if as_json:
        emit_json({"cancelled": outcomes})
    else:
        states = {True: "cancelled", False: "not found"}
        rows = [{"job": job_id, "state": states[was]} for job_id, was in outcomes.items()]
        emit_table(rows, has_header=False)
    return 0 if all(answers) else 1


async def _cancel_where(
    seen: Visit, *, meant: dict[str, Any], is_dry: bool, is_sure: bool
) -> Cancelled:
    """What is meant is counted and shown before the question."""
    if is_dry or not is_sure:
        found = await behind_bar(
            "reading delayed jobs", seen.queue.cancel_delayed_where(**meant, dry_run=True)
        )
        if is_dry or not found.matched:
            return found
        _show_sample(found, seen.queue.name)
        confirm_name(
            f"{counted(found.matched, 'delayed job')} of {clean(seen.queue.name)} will be cancelled",
            seen.queue.name,
        )
    return await behind_bar("cancelling", seen.queue.cancel_delayed_where(**meant))


def _show_cancelled(done: Cancelled, queue: str, is_dry: bool, as_json: bool) -> None:
    if as_json:
        sample = list(map(_facts, done.sample))
        emit_json({"cancelled": int(done), "matched": done.matched, "dry_run": is_dry,
                   "sample": sample})  # fmt: skip
    elif is_dry:
        _show_sample(done, queue)
        click.echo(f"would cancel {counted(done.matched, 'delayed job')}")
    else:
        click.echo(f"cancelled {counted(int(done), 'delayed job')}")


def _show_sample(found: Cancelled, queue: str) -> None:
    for job in found.sample:
        name, job_id = job.name or "-", job.job_id or "(cannot be read)"
        click.echo(clean(f"{job_id}  {name}  {iso(job.due_ms)}"), err=True)
    if found.matched > len(found.sample):
        click.echo(f"and {found.matched - len(found.sample):,} more", err=True)


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
    """Why it does not run now: no worker has its handler, an attempt failed, or its time has not come."""
    if job.waits_for is None:
        return "its retry" if job.attempt else "its time"
    until = f", until {iso(job.waits_until_ms)}" if job.waits_until_ms else ""
    return f"{job.waits_for} since {iso(job.waits_since_ms)}{until}"
