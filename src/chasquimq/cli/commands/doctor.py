"""`chasqui doctor`: finds what is wrong with a server or its queues, and says what to do."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from chasquimq.cli.context import (
    group_option,
    json_option,
    lease_option,
    possible_queue,
    reason_of_choice,
    redis_url_option,
    refuse_unknown,
    run,
    running_server,
)
from chasquimq.cli.output.render import emit_json, emit_table, mask_secrets, mask_url
from chasquimq.cli.output.terminal import behind_bar, progress_bar
from chasquimq.errors import ConnectionLost, ServerRefused, StoreError

if TYPE_CHECKING:
    from chasquimq.model.diagnosis import Diagnosis
    from chasquimq.queue.inspector import Inspector

EXIT_FINDINGS = 1
# Which server was asked, and why that one; None where none was found.
Server = dict[str, str] | None
MARKS = {"ok": "ok", "note": "note", "warning": "WARNING", "error": "ERROR"}


@click.command()
@click.argument("queue", required=False, callback=possible_queue)
@group_option
@lease_option
@redis_url_option
@json_option
def doctor(
    queue: str | None, group: str, lease_ms: int, redis_url: str | None, as_json: bool
) -> int:
    """Check the server and QUEUE, or all queues; exit code 1 when something should be done.

    Looks only, and changes nothing.
    """
    server, findings = run(_diagnose(queue, group, lease_ms, redis_url))
    problems = [finding for finding in findings if finding.is_problem]
    if as_json:
        checks = list(map(_facts, findings))
        emit_json({"ok": not problems, "server": server, "checks": checks})
    else:
        emit_table([_row(one, server) for one in findings], text=("found",))
        _show_remedies(problems)
    return EXIT_FINDINGS if problems else 0


async def _diagnose(
    queue: str | None, group: str, lease_ms: int, redis_url: str | None
) -> tuple[Server, list[Diagnosis]]:
    from chasquimq.queue.inspector import Inspector

    server: Server = None
    try:
        url = running_server(redis_url)
        server = {"url": mask_url(url), "reason": reason_of_choice()}
        async with Inspector(redis_url=url) as inspector:
            about_server = behind_bar("asking the server", inspector.diagnose_server())
            findings = await _permitted(about_server)
            findings += await _permitted(_diagnose_queues(inspector, queue, group, lease_ms))
            # What is missing for both is said once.
            return server, list(dict.fromkeys(findings))
    except (ConnectionLost, ServerRefused) as refused:
        return server, [_unusable(refused)]


async def _permitted(
    work: Coroutine[Any, Any, list[Diagnosis]], queue: str = ""
) -> list[Diagnosis]:
    """What was found; a missing right hides only what it is needed for."""
    from chasquimq.model.diagnosis import error

    try:
        return await work
    except ServerRefused as refused:
        if refused.code != "NOPERM":
            raise
        found, _, remedy = str(refused).rpartition("; ")
        return [replace(error("rights", found, remedy), queue=queue or None)]


async def _diagnose_queues(
    inspector: Inspector, queue: str | None, group: str, lease_ms: int
) -> list[Diagnosis]:
    names = await _names(inspector, queue)
    return await _check_queues(inspector, names, group, lease_ms)


async def _names(inspector: Inspector, queue: str | None) -> list[str]:
    if queue is not None:
        await _refuse_unknown(inspector, queue)
        return [queue]
    with progress_bar("looking for queues") as advance:
        return await inspector.queues(advance)


async def _refuse_unknown(inspector: Inspector, queue: str) -> None:
    try:
        survey = await inspector.survey([queue])
    except ServerRefused as refused:
        if refused.code != "NOPERM":
            raise
        return  # the check of the queue says what is missing
    for snapshot in survey.snapshots:
        await refuse_unknown(inspector, snapshot)


async def _check_queues(
    inspector: Inspector, names: Sequence[str], group: str, lease_ms: int
) -> list[Diagnosis]:
    findings: list[Diagnosis] = []
    with progress_bar("checking queues") as advance:
        for done, name in enumerate(names):
            advance(done, len(names))
            findings += await _permitted(inspector.diagnose_queue(name, group, lease_ms), name)
    return findings


def _unusable(refused: StoreError) -> Diagnosis:
    from chasquimq.model.diagnosis import error

    # Messages of our errors end with what to try; those of the server do not.
    found, _, remedy = str(refused).rpartition("; ")
    if not found:
        return error("server", remedy, "wait until it is ready, or correct its URL")
    return error("server", found, remedy)


def _row(finding: Diagnosis, server: Server) -> dict[str, Any]:
    found = finding.found
    if server is not None and finding.check == "server":
        place = "" if server["url"] in found else f" at {server['url']}"
        found = f"{found}{place} ({server['reason']})"
    return {
        "": MARKS[finding.level],
        "queue": finding.queue,
        "check": finding.check,
        "found": mask_secrets(found),
    }


def _show_remedies(problems: list[Diagnosis]) -> None:
    if not problems:
        click.echo("\nnothing to do")
        return
    click.echo("\nto do")
    rows = [{"check": _title(finding), "remedy": finding.remedy} for finding in problems]
    emit_table(rows, has_header=False, text=("check", "remedy"))


def _title(finding: Diagnosis) -> str:
    return f"{finding.queue}: {finding.check}" if finding.queue else finding.check


def _facts(finding: Diagnosis) -> dict[str, Any]:
    return {
        "queue": finding.queue,
        "check": finding.check,
        "level": finding.level,
        "found": mask_secrets(finding.found),
        "remedy": finding.remedy or None,
    }
