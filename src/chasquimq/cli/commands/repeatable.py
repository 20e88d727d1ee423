"""`chasqui repeatable`: lists, runs or removes jobs that come again and again."""

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
    queue_argument,
    redis_url_option,
    running_server,
    yes_option,
)
from chasquimq.cli.output.render import clean, emit_json, emit_list, emit_table
from chasquimq.cli.output.terminal import confirm, is_answered_by_a_person
from chasquimq.cli.values import duration_text, interval_text, iso
from chasquimq.errors import PreconditionFailed, SettingsError

if TYPE_CHECKING:
    from chasquimq.job import Job
    from chasquimq.repeat import QuarantinedRepeatable, RepeatableMeta


@click.group(cls=Group)
def repeatable() -> None:
    """List, run or remove repeatable jobs, and see which cannot fire."""


@repeatable.command("list")
@queue_argument
@limit_option(100, "How many to show, soonest first.")
@redis_url_option
@json_option
def list_(queue: str, limit: int, redis_url: str | None, as_json: bool) -> None:
    """List the repeatable jobs of QUEUE, the next to fire first."""
    now_ms, plans = ask(queue, running_server(redis_url), partial(_plans, limit=limit))
    row = partial(_row, queue=queue, now_ms=now_ms)
    if as_json:
        emit_json([plan.to_dict() for plan in plans])
        return
    rows = list(map(row, plans)) or [_empty(queue)]
    emit_table(rows, text=("job_name", "pattern", "tz"), optional=("limit",))


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
    was_there = ask(queue, url, lambda seen: seen.queue.remove_repeatable_by_key(key))
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
    url = running_server(redis_url)
    job = ask(queue, url, partial(_fire, key=key))
    if as_json:
        emit_json({"job_id": job.id, "name": job.name})
    else:
        click.echo(clean(job.id))


@repeatable.command()
@queue_argument
@limit_option(100, "How many to show.")
@redis_url_option
@json_option
def quarantined(queue: str, limit: int, redis_url: str | None, as_json: bool) -> None:
    """List plans of QUEUE that can never fire and were quarantined; add them again or remove them."""
    url = running_server(redis_url)
    plans = ask(queue, url, lambda seen: seen.queue.quarantined_repeatables(limit))
    row = partial(_bad_row, queue=queue)
    emit_list(
        plans, as_json, facts=_bad_facts, row=row, nothing="nothing is quarantined",
        text=("reason",), optional=("spec bytes",),
    )  # fmt: skip


async def _plans(seen: Visit, limit: int) -> tuple[int, list[RepeatableMeta]]:
    plans = await seen.queue.get_repeatable_jobs(limit)
    # Plans fire by the server's clock, so that is the one to count from.
    return (await seen.inspector.snapshot(seen.queue.name)).at_ms, plans


async def _fire(seen: Visit, key: str) -> Job:
    try:
        return await seen.queue.run_repeatable_now(key)
    except SettingsError as refused:
        if refused.name != "key":
            raise
        hint = f"`chasqui repeatable list {seen.queue.name}` shows the keys"
        raise PreconditionFailed("key", key, refused.rule, hint=hint) from None


def _row(plan: RepeatableMeta, queue: str, now_ms: int) -> dict[str, Any]:
    is_cron = plan.pattern.kind == "cron"
    every = f"every {interval_text(plan.pattern.interval_ms or 0)}"
    return {
        f"repeatable: {queue}": plan.key,
        "job_name": plan.job_name,
        "pattern": plan.pattern.expression if is_cron else every,
        "tz": (plan.pattern.tz or "UTC") if is_cron else None,
        "next fire": _when(plan.next_fire_ms - now_ms),
        "limit": plan.limit,
    }


def _empty(queue: str) -> dict[str, Any]:
    columns = ("job_name", "pattern", "tz", "next fire", "limit")
    return {f"repeatable: {queue}": "(empty)"} | dict.fromkeys(columns)


def _when(ms: int) -> str:
    return f"in {duration_text(ms)}" if ms >= 0 else f"{duration_text(-ms)} late"


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
