"""`chasqui dlq`: what was given up, looked at, sent back, deleted or written to a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from chasquimq.cli.app import Group
from chasquimq.cli.context import (
    Command,
    any_server,
    fingerprint_option,
    json_option,
    limit_option,
    name_option,
    queue_argument,
    reason_option,
    redis_url_option,
    run,
    running_server,
    yes_option,
)
from chasquimq.cli.dlq.select import Patch, PatchType
from chasquimq.cli.pipeline.options import FILTERING, READING, lake_option, need
from chasquimq.cli.values import AT_LEAST_0, AT_LEAST_1, DURATION, RATE
from chasquimq.model.json_value import value_of_json

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
    from chasquimq.cli.dlq.peek import peek_at, show_json, show_tables

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
    from chasquimq.cli.dlq.triage import show
    from chasquimq.cli.dlq.triage import triage as triage_all

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
    from chasquimq.cli.dlq.replay import replay_all, show
    from chasquimq.cli.dlq.select import Request

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
@click.argument("job", metavar="ID")
@click.option(
    "--set",
    "patches",
    type=PatchType(),
    multiple=True,
    help="Change a part of the data, such as $.to=ana@example.org; may be given twice.",
)
@click.option("--data", metavar="JSON|-|@FILE", help="Replace all of the data.")
@click.option("--dry-run", "is_dry", is_flag=True, help="Only show the difference.")
@lake_option
@yes_option
@redis_url_option
@json_option
def edit(
    *,
    queue: str,
    job: str,
    patches: tuple[Patch, ...],
    data: str | None,
    is_dry: bool,
    lake: Path,
    is_sure: bool,
    redis_url: str | None,
    as_json: bool,
) -> None:
    """Change the data of one dead job of QUEUE and send it back to its workers.

    ID is its job id, or its DLQ id. Without --set and --data the data is opened in the editor
    of VISUAL or EDITOR. The difference is shown first, and asked about unless --yes is given.
    """
    from chasquimq.cli.commands.add import read_json
    from chasquimq.cli.dlq import edit as dlq_edit
    from chasquimq.cli.dlq.replay import replay_all, show
    from chasquimq.cli.dlq.select import Request

    if patches and data is not None:
        raise click.UsageError("--set changes a part and --data replaces all; give one")
    _refuse_no_lake(lake)
    value = None if data is None else value_of_json(read_json(data))
    url = running_server(redis_url)
    found = run(dlq_edit.find_data(queue, url, job))
    if patches:
        found = dlq_edit.with_patches(found, patches)
    else:
        found = dlq_edit.with_editor(found) if data is None else found._replace(after=value)
    dlq_edit.refuse_no_change(found)
    if not as_json:
        dlq_edit.show_difference(found)
    request = Request(
        queue=queue, limit=1, ids=(found.dlq_id,), filters={}, patches=(found.patch,),
        is_dry=is_dry, is_sure=is_sure, max_rate=None,
    )  # fmt: skip
    show(run(replay_all(request, url, lake)), request, as_json)


@dlq.command("import")
@queue_argument
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--as-jobs", is_flag=True, help="Not as dead jobs: let workers run them.")
@click.option("--dry-run", "is_dry", is_flag=True, help="Only check the file.")
@yes_option
@redis_url_option
@json_option
def import_(
    *,
    queue: str,
    file: Path,
    as_jobs: bool,
    is_dry: bool,
    is_sure: bool,
    redis_url: str | None,
    as_json: bool,
) -> None:
    """Add the dead jobs of FILE, which `dlq export` wrote, to QUEUE, byte for byte.

    Every line is checked before the first is added. A job that is still in the DLQ, or was
    imported in the last 24 hours, is not added again, so it may be repeated. Asks first, unless
    --yes is given.
    """
    from chasquimq.cli.dlq.transfer import import_all, show

    url = any_server(redis_url)
    done = run(import_all(queue, url, file, as_jobs=as_jobs, is_dry=is_dry, is_sure=is_sure))
    show(done, is_dry=is_dry, as_jobs=as_jobs, as_json=as_json)


@dlq.command()
@queue_argument
@click.option("--last", type=AT_LEAST_1, default=1, show_default=True, help="How many replays.")
@lake_option
@json_option
def outcome(queue: str, last: int, lake: Path, as_json: bool) -> None:
    """Tell what became of dead jobs of QUEUE that were sent back, from the tables of a lake."""
    from chasquimq.cli.dlq.outcome import outcomes, show

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
    from chasquimq.cli.dlq.edit import purge_all, show

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
    from chasquimq.cli.dlq.transfer import export_all

    run(export_all(queue, running_server(redis_url), filters, limit, output))


def _refuse_no_lake(lake: Path) -> None:
    """One that was named must be there; without the usual one these commands tell less."""
    source = click.get_current_context().get_parameter_source("lake")
    if source is not ParameterSource.COMMANDLINE:
        return
    need(READING, "--lake")
    from chasquimq.spark.query.queries import refuse_empty

    refuse_empty(lake)


def _meant(filters: dict[str, str | None], **more: Any) -> dict[str, Any]:
    return {name: value for name, value in {**filters, **more}.items() if value is not None}
