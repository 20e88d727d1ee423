"""`chasqui repeatable`: plans of jobs that come again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from chasquimq.cli.asking import confirm, is_answered_by_a_person
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
from chasquimq.cli.visit import run, visit

if TYPE_CHECKING:
    from chasquimq.job import Job
    from chasquimq.repeat import QuarantinedRepeatable, RepeatableMeta


@click.group()
def repeatable() -> None:
    """List, run or remove repeatable jobs, and see which cannot fire."""


@repeatable.command("list")
@queue_argument
@limit_option(100, "How many to show, soonest first.")
@redis_url_option
@json_option
def list_(queue: str, limit: int, redis_url: str | None, as_json: bool) -> None:
    """List the repeatable jobs of QUEUE, the next to fire first."""
    plans = run(_plans(queue, limit, running_server(redis_url)))
    if as_json:
        emit_json([plan.to_dict() for plan in plans])
    else:
        emit_table([_row(plan, queue) for plan in plans] or [_nothing(queue)])


@repeatable.command()
@queue_argument
@click.argument("key")
@yes_option
@redis_url_option
@json_option
def remove(queue: str, key: str, is_sure: bool, redis_url: str | None, as_json: bool) -> int:
    """End the plan KEY of QUEUE; jobs it has fired are not touched.

    On a terminal it asks first; exit code 1 when there is no such plan.
    """
    url = running_server(redis_url)
    if not is_sure and is_answered_by_a_person():
        confirm(f"end the repeatable job {key!r} of {queue}?")
    was_there = run(_remove(queue, key, url))
    if as_json:
        emit_json({"removed": was_there})
    else:
        click.echo("removed" if was_there else "not found")
    return 0 if was_there else 1


@repeatable.command("run")
@queue_argument
@click.argument("key")
@redis_url_option
@json_option
def run_(queue: str, key: str, redis_url: str | None, as_json: bool) -> None:
    """Add one job of the plan KEY now; its next fire and its limit stay as they are."""
    job = run(_fire(queue, key, running_server(redis_url)))
    if as_json:
        emit_json({"job_id": job.id, "name": job.name})
    else:
        click.echo(job.id)


@repeatable.command()
@queue_argument
@limit_option(100, "How many to show.")
@redis_url_option
@json_option
def quarantined(queue: str, limit: int, redis_url: str | None, as_json: bool) -> None:
    """List plans of QUEUE that can never fire and were put aside; plan anew or remove them."""
    plans = run(_quarantined(queue, limit, running_server(redis_url)))
    if as_json:
        emit_json([_bad_facts(plan) for plan in plans])
    elif plans:
        emit_table([_bad_row(plan, queue) for plan in plans])
    else:
        click.echo("nothing is quarantined", err=True)


async def _plans(queue: str, limit: int, url: str) -> list[RepeatableMeta]:
    async with visit(queue, url) as seen:
        return await seen.queue.get_repeatable_jobs(limit)


async def _remove(queue: str, key: str, url: str) -> bool:
    async with visit(queue, url) as seen:
        return await seen.queue.remove_repeatable_by_key(key)


async def _fire(queue: str, key: str, url: str) -> Job:
    async with visit(queue, url) as seen:
        return await seen.queue.run_repeatable_now(key)


async def _quarantined(queue: str, limit: int, url: str) -> list[QuarantinedRepeatable]:
    async with visit(queue, url) as seen:
        return await seen.queue.quarantined_repeatables(limit)


def _row(plan: RepeatableMeta, queue: str) -> dict[str, Any]:
    is_cron = plan.pattern.kind == "cron"
    return {
        f"repeatable: {queue}": plan.key,
        "job_name": plan.job_name,
        "pattern": plan.pattern.expression if is_cron else f"every {plan.pattern.interval_ms}ms",
        "tz": (plan.pattern.tz or "UTC") if is_cron else None,
        "next fire (ms)": plan.next_fire_ms,
        "limit": plan.limit,
    }


def _nothing(queue: str) -> dict[str, Any]:
    columns = ("job_name", "pattern", "tz", "next fire (ms)", "limit")
    return {f"repeatable: {queue}": "(empty)"} | dict.fromkeys(columns)


def _bad_facts(plan: QuarantinedRepeatable) -> dict[str, Any]:
    return {
        "key": plan.key,
        "reason": plan.reason,
        "since_ms": plan.quarantined_at_ms,
        "spec_bytes": len(plan.spec),
    }


def _bad_row(plan: QuarantinedRepeatable, queue: str) -> dict[str, Any]:
    return {
        f"quarantined: {queue}": plan.key,
        "since": iso(plan.quarantined_at_ms),
        "spec bytes": len(plan.spec),
        "reason": plan.reason,
    }
