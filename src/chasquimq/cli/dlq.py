"""`chasqui dlq`: what was given up, looked at, sent back, deleted or written to a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from chasquimq.cli.dlq_patch import Patch, PatchType
from chasquimq.cli.duration import DURATION
from chasquimq.cli.main import Group
from chasquimq.cli.number import AT_LEAST_0, AT_LEAST_1, RATE
from chasquimq.cli.options import (
    Command,
    fingerprint_option,
    json_option,
    limit_option,
    name_option,
    queue_argument,
    reason_option,
    redis_url_option,
    yes_option,
)
from chasquimq.cli.pipeline_needs import FILTERING, READING, need
from chasquimq.cli.pipeline_options import lake_option
from chasquimq.cli.server_choice import running_server
from chasquimq.cli.visit import run

ids_option = click.option(
    "--id", "ids", multiple=True, metavar="DLQ_ID", help="Only this entry; may be given twice."
)


def filter_options(command: Command) -> Command:
    """Which entries are meant; filters that are given together must all match."""
    for option in (fingerprint_option, reason_option, name_option):
        command = option(command)
    return command


@click.group(cls=Group)
def dlq() -> None:
    """Look at dead jobs, send them back, delete them or write them to a file."""


@dlq.command()
@queue_argument
@limit_option(20, "How many entries to show, oldest first.")
@filter_options
@click.option("--traceback", "has_tracebacks", is_flag=True, help="Show where each of them failed.")
@redis_url_option
@json_option
def peek(
    queue: str,
    limit: int,
    has_tracebacks: bool,
    redis_url: str | None,
    as_json: bool,
    **filters: str | None,
) -> None:
    """Show the oldest dead jobs of QUEUE, and all of them by reason and fingerprint.

    In JSON each entry has its whole data and its traceback.
    """
    from chasquimq.cli.dlq_peek import peek_at, show_json, show_tables

    peeked = run(peek_at(queue, running_server(redis_url), limit, filters))
    if as_json:
        show_json(peeked)
    else:
        show_tables(peeked, has_tracebacks=has_tracebacks)


@dlq.command()
@queue_argument
@limit_option(20, "How many kinds to show, the most frequent first.", least=AT_LEAST_1)
@filter_options
@lake_option
@redis_url_option
@json_option
def triage(
    queue: str,
    limit: int,
    lake: Path,
    redis_url: str | None,
    as_json: bool,
    **filters: str | None,
) -> None:
    """Show all dead jobs of QUEUE by what went wrong: how many, since when, at what cost.

    How long their attempts ran is known where a pipeline fills the lake.
    """
    from chasquimq.cli.dlq_triage import show
    from chasquimq.cli.dlq_triage import triage as triage_all

    _refuse_no_lake(lake)
    kinds = run(triage_all(queue, running_server(redis_url), filters, lake))
    show(kinds, queue, limit, as_json)


@dlq.command()
@queue_argument
@click.option(
    "--limit",
    type=AT_LEAST_0,
    help="How many entries to send back at most.  [default: 100; all with --id or --where]",
)
@ids_option
@filter_options
@click.option("--where", metavar="SQL", help="Only entries that meet this condition.")
@click.option(
    "--set",
    "patches",
    type=PatchType(),
    multiple=True,
    help="Change the data, such as $.to=ana@example.org; may be given twice.",
)
@click.option(
    "--on-error",
    type=click.Choice(["fail", "skip"]),
    default="fail",
    show_default=True,
    help="What to do where a change does not fit: nothing at all, or leave that entry.",
)
@click.option("--dry-run", "is_dry", is_flag=True, help="Only tell what would be sent back.")
@click.option("--max-rate", type=RATE, help="Jobs per second at most.")
@lake_option
@yes_option
@redis_url_option
@json_option
def replay(
    *,
    queue: str,
    limit: int | None,
    ids: tuple[str, ...],
    where: str | None,
    patches: tuple[Patch, ...],
    on_error: str,
    is_dry: bool,
    max_rate: float | None,
    lake: Path,
    is_sure: bool,
    redis_url: str | None,
    as_json: bool,
    **filters: str | None,
) -> None:
    """Send the oldest dead jobs of QUEUE back to their workers, with all their attempts.

    Asks first, unless --yes is given. Entries that cannot be decoded stay where they are. A
    condition is SQL about dlq_id, job_id, name, reason, detail, error, traceback, fingerprint,
    attempt, failed_at, created_at, payload_bytes and data, such as: data->>'$.country' = 'PE'.
    """
    from chasquimq.cli.dlq_choice import Request
    from chasquimq.cli.dlq_replay import replay_all, show

    _refuse_no_lake(lake)
    if where is not None:
        need(FILTERING, "--where")
    request = Request(
        queue=queue, limit=limit, ids=ids or None, filters=filters, where=where, patches=patches,
        skips=on_error == "skip", is_dry=is_dry, is_sure=is_sure, max_rate=max_rate,
    )  # fmt: skip
    show(run(replay_all(request, running_server(redis_url), lake)), request, as_json)


@dlq.command()
@queue_argument
@click.option("--last", type=AT_LEAST_1, default=1, show_default=True, help="How many replays.")
@lake_option
@json_option
def outcome(queue: str, last: int, lake: Path, as_json: bool) -> None:
    """Tell what became of dead jobs of QUEUE that were sent back, from the tables of a lake."""
    from chasquimq.cli.dlq_outcome import show
    from chasquimq.cli.dlq_track import outcomes

    need(READING, "dlq outcome")
    show(outcomes(lake, queue, last), queue, as_json)


@dlq.command()
@queue_argument
@ids_option
@filter_options
@click.option("--older-than", "older_than_ms", type=DURATION, help="Only what lies there longer.")
@click.option("--all", "is_all", is_flag=True, help="Every entry; not together with filters.")
@yes_option
@redis_url_option
@json_option
def purge(
    queue: str,
    ids: tuple[str, ...],
    older_than_ms: int | None,
    is_all: bool,
    is_sure: bool,
    redis_url: str | None,
    as_json: bool,
    **filters: str | None,
) -> None:
    """Delete dead jobs of QUEUE for good: those that match the filters, or --all.

    Asks for the name of the queue, unless --yes is given.
    """
    from chasquimq.cli.dlq_purge import purge_all, show

    meant = _meant(filters, ids=ids or None, older_than_ms=older_than_ms)
    if bool(meant) == is_all:
        raise click.UsageError("say what to delete: either some filters, or --all.")
    show(run(purge_all(queue, running_server(redis_url), meant, is_sure)), as_json)


@dlq.command()
@queue_argument
@filter_options
@click.option(
    "--output",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write to this file.  [default: stdout]",
)
@click.option("--limit", type=AT_LEAST_0, help="How many entries at most.")
@redis_url_option
@click.option("--json", "as_json", is_flag=True, help="Taken for granted: lines are JSON anyway.")
def export(
    queue: str,
    output: Path | None,
    limit: int | None,
    redis_url: str | None,
    as_json: bool,
    **filters: str | None,
) -> None:
    """Write the dead jobs of QUEUE as JSON lines, with their data decoded where possible."""
    from chasquimq.cli.dlq_export import export_all

    run(export_all(queue, running_server(redis_url), filters, limit, output))


def _refuse_no_lake(lake: Path) -> None:
    """One that was named must be there; without the usual one these commands tell less."""
    source = click.get_current_context().get_parameter_source("lake")
    if source is not ParameterSource.COMMANDLINE:
        return
    need(READING, "--lake")
    from chasquimq.spark.answers import refuse_empty

    refuse_empty(lake)


def _meant(filters: dict[str, str | None], **more: Any) -> dict[str, Any]:
    return {name: value for name, value in {**filters, **more}.items() if value is not None}
