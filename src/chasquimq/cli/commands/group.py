"""`chasqui group`: lists the consumer groups of a queue, or removes one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from chasquimq.cli.app import Group
from chasquimq.cli.context import (
    Visit,
    ask,
    json_option,
    queue_argument,
    redis_url_option,
    running_server,
    yes_option,
)
from chasquimq.cli.output.render import clean, emit_json, emit_list
from chasquimq.cli.output.terminal import confirm_name
from chasquimq.errors import StoreError

if TYPE_CHECKING:
    from chasquimq.model.snapshot import GroupUse


@click.group(cls=Group)
def group() -> None:
    """List the consumer groups of a queue, or remove one that is used no more."""


@group.command("list")
@queue_argument
@redis_url_option
@json_option
def list_(queue: str, redis_url: str | None, as_json: bool) -> None:
    """List the consumer groups of QUEUE: their live consumers, and the jobs that they hold."""
    url = running_server(redis_url)
    found = ask(queue, url, lambda seen: seen.inspector.groups(queue))
    emit_list(
        found, as_json, facts=_group_facts, row=_group_facts, nothing="no group has been made yet"
    )


@group.command()
@queue_argument
@click.argument("name", metavar="GROUP")
@click.option("--force", "is_forced", is_flag=True, help="Also a group that is in use.")
@yes_option
@redis_url_option
@json_option
def remove(
    queue: str, name: str, is_forced: bool, is_sure: bool, redis_url: str | None, as_json: bool
) -> None:
    """Remove GROUP from QUEUE, so that workers of another group may start.

    Asks for the name of the group, unless --yes is given. A group with a live consumer or pending
    jobs stays, unless --force is given. No job is lost: those that it held run again.
    """
    from chasquimq.model.snapshot import group_still_used

    async def removed(seen: Visit) -> GroupUse:
        known = await _known(seen, queue, name)
        if known.is_used and not is_forced:
            raise group_still_used(queue, known)
        if not is_sure:
            confirm_name(clean(f"the group {known} of {queue} will be removed"), name, of="group")
        found = await seen.inspector.remove_group(queue, name, force=is_forced)
        return found or await _known(seen, queue, name)

    found = ask(queue, running_server(redis_url), removed)
    if as_json:
        emit_json({"removed": name, "consumers": found.workers, "pending": found.pending})
    else:
        click.echo(clean(_removed_text(queue, found)))


async def _known(seen: Visit, queue: str, name: str) -> GroupUse:
    """The group as it is; other programs name groups as they like, so that no rule is asked."""
    known = {one.name: one for one in await seen.inspector.groups(queue)}
    if name in known:
        return known[name]
    there = f"groups: {', '.join(map(repr, known))}" if known else "it has no groups yet"
    raise StoreError(f"queue {queue!r} has no group named {name!r}; {there}")


def _removed_text(queue: str, found: GroupUse) -> str:
    said = f"removed the group {found.name} of {queue}"
    if found.pending:
        jobs = "job that it held runs" if found.pending == 1 else "jobs that it held run"
        said += f"; the {found.pending:,} {jobs} again"
    if found.workers:
        said += "; a worker of it that still runs makes it again, so stop it"
    return said


def _group_facts(one: GroupUse) -> dict[str, Any]:
    return {"group": one.name, "consumers": one.workers, "pending": one.pending}
