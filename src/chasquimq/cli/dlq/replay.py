"""Sends dead jobs back: finds which, asks, then moves them at the pace asked for."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from chasquimq.cli import interrupts
from chasquimq.cli.context import (
    filter_options,
    ids_option,
    json_option,
    queue_argument,
    redis_url_option,
    run,
    running_server,
    visit,
    yes_option,
)
from chasquimq.cli.dlq.outcome import ReplayRecorder
from chasquimq.cli.dlq.select import (
    Patch,
    PatchType,
    matching_ids,
    patched,
    refuse_unknown_reason,
)
from chasquimq.cli.output.render import clean, counted, emit_json, json_text, talk
from chasquimq.cli.output.terminal import Advance, behind_bar, confirm, progress_bar
from chasquimq.cli.pipeline.options import FILTERING, lake_option, need, refuse_named_lake
from chasquimq.cli.values import AT_LEAST_0, RATE
from chasquimq.errors import EditRefused, SettingsError
from chasquimq.model.chunks import in_chunks
from chasquimq.model.json_value import json_value

if TYPE_CHECKING:
    from chasquimq.queue.dlq import Replayed
    from chasquimq.queue.queue import Queue

LIMIT_DEFAULT = 100
EXAMPLES_MAX = 3
CHUNK_MAX = 100
CHUNK_S = 0.5


@click.command()
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
@click.option("--dry-run", "is_dry", is_flag=True, help="Only show what would be sent back.")
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
    refuse_named_lake(lake)
    if where is not None:
        need(FILTERING, "--where")
    request = Request(
        queue=queue, limit=limit, ids=ids or None, filters=filters, where=where, patches=patches,
        skips=on_error == "skip", is_dry=is_dry, is_sure=is_sure, max_rate=max_rate,
    )  # fmt: skip
    show(run(replay_all(request, running_server(redis_url), lake)), request, as_json)


class Request(NamedTuple):
    """What was asked for; no `limit` means all of those that ids or a condition name."""

    queue: str
    limit: int | None
    ids: Sequence[str] | None
    filters: Mapping[str, Any]
    is_dry: bool
    is_sure: bool
    max_rate: float | None
    where: str | None = None
    patches: Sequence[Patch] = ()
    skips: bool = False

    def most(self, found: int) -> int:
        """How many entries are replayed at most."""
        if self.limit is not None:
            return self.limit
        return found if self.where or self.ids else LIMIT_DEFAULT


class Example(NamedTuple):
    """The data of one job, before and after its change."""

    before: Any
    after: Any


class Edits:
    """Makes the changes in each job, and remembers which did not fit and what a few became."""

    # A user may set the data of a job to null by name; a function forgets to return.
    may_return_none = True

    def __init__(self, patches: Sequence[Patch]) -> None:
        self._patches = patches
        self.reasons: Counter[str] = Counter()
        self.examples: list[Example] = []

    def __call__(self, data: Any) -> Any:
        try:
            changed = patched(data, self._patches)
        except EditRefused as refusal:
            self.reasons[str(refusal)] += 1
            raise
        if len(self.examples) < EXAMPLES_MAX:
            self.examples.append(Example(json_value(data), json_value(changed)))
        return changed

    def refuse_misfits(self, refused: int) -> None:
        """Raise a sentence where a change does not fit that many jobs.

        Raises:
            SettingsError: there are any, with how many and why.
        """
        if not refused:
            return
        why = next(iter(self.reasons), "the changed data cannot be stored, or is too large")
        found = f"{counted(refused, 'job')} that it does not fit ({why})"
        hint = "nothing was replayed; name fewer jobs with --where, or leave them: --on-error skip"
        text = " ".join(patch.text for patch in self._patches)
        raise SettingsError("set", f"{text} with {found}", "a change that fits each job", hint=hint)


class ReplayResult(NamedTuple):
    """What became of it; `ids` were found among `depth` entries, `replayed` of them moved."""

    depth: int
    limit: int
    replayed: int
    ids: list[str]
    skipped: int
    refused: int
    edits: Edits
    record: str | None = None


async def replay_all(request: Request, url: str, lake: Path | None = None) -> ReplayResult:
    """Find, ask, move, and record what was moved where tables can show what becomes of it."""
    edits = Edits(request.patches)
    async with visit(request.queue, url) as seen:
        depth = (await seen.inspector.snapshot(request.queue)).dlq_depth
        found, limit = await _find(seen.queue, request, edits)
        if not found.matched:
            refuse_unknown_reason(request.filters)
        if not request.skips:
            edits.refuse_misfits(found.refused)
        answer = ReplayResult(depth, limit, 0, found.ids, found.skipped, found.refused, edits)
        if request.is_dry or not found.ids:
            return answer
        if not request.is_sure:
            jobs = counted(len(found.ids), "dead job")
            confirm(
                f"send {jobs} of {request.queue} back to {'its' if len(found.ids) == 1 else 'their'} workers?"
            )
        job_ids, record = await _replay_recorded(seen.queue, found, request, lake)
    return answer._replace(replayed=len(job_ids), record=record)


def show(answer: ReplayResult, request: Request, as_json: bool) -> None:
    """Print what happened, or would."""
    if as_json:
        emit_json(_facts(answer, request))
        return
    if answer.refused:
        refused = _entries(answer.refused)
        verbs = "does not take the change and stays", "do not take the change and stay"
        click.echo(f"{refused} {verbs[answer.refused > 1]}", err=True)
    if answer.skipped > answer.refused:
        unread = answer.skipped - answer.refused
        skipped = _entries(unread)
        click.echo(f"{skipped} cannot be decoded and stay{'s' * (unread == 1)}", err=True)
    if request.is_dry:
        _show_examples(answer.edits)
        click.echo(f"would replay {len(answer.ids):,} of {_entries(answer.depth)}")
        return
    click.echo(f"replayed {answer.replayed:,} of {_entries(answer.depth)}")
    if answer.record:
        click.echo(f"what becomes of them: chasqui dlq outcome {clean(request.queue)}", err=True)


def _entries(count: int) -> str:
    return counted(count, "entry", "entries")


def _facts(answer: ReplayResult, request: Request) -> dict[str, Any]:
    return {
        "depth": answer.depth,
        "replayed": answer.replayed,
        "ids": answer.ids,
        "skipped": answer.skipped,
        "limit": answer.limit,
        "dry_run": request.is_dry,
        "record": answer.record,
        "refused": answer.refused,
        "refused_because": dict(answer.edits.reasons),
        "examples": [one._asdict() for one in answer.edits.examples] if request.is_dry else [],
    }


def _show_examples(edits: Edits) -> None:
    for before, after in edits.examples:
        if before != after:
            click.echo(f"- {json_text(before)}\n+ {json_text(after)}")


async def _find(queue: Queue, request: Request, edits: Edits) -> tuple[Replayed, int]:
    with progress_bar("reading the DLQ") as advance:
        ids = await _chosen_ids(queue, request, advance)
    limit = request.most(len(ids or ()))
    some = None if ids is None else ids[:limit]
    return await behind_bar("reading the DLQ", _look(queue, request, edits, some, limit)), limit


async def _chosen_ids(queue: Queue, request: Request, advance: Advance) -> list[str] | None:
    """The entries that ids or a condition name, oldest first; None where neither is given."""
    named = None if request.ids is None else dict.fromkeys(request.ids)
    if request.where is None:
        return None if named is None else list(named)
    matches = await matching_ids(queue, request.where, request.filters, advance)
    return [one for one in matches if named is None or one in named]


async def _look(
    queue: Queue, request: Request, edits: Edits, ids: Sequence[str] | None, limit: int
) -> Replayed:
    """What would go. Where a change must fit all of them, no others are asked to take their place."""
    if not request.patches or request.skips or ids is not None:
        edit = edits if request.patches else None
        return await queue.replay_dlq(limit, ids=ids, dry_run=True, edit=edit, **request.filters)
    meant = await queue.replay_dlq(limit, dry_run=True, **request.filters)
    found = await queue.replay_dlq(limit, ids=meant.ids, dry_run=True, edit=edits)
    found.skipped += meant.skipped
    found.matched = meant.matched
    return found


async def _replay_recorded(
    queue: Queue, found: Replayed, request: Request, lake: Path | None
) -> tuple[list[str], str | None]:
    """The jobs that were sent, and the name under which that was written down."""
    recorder, job_ids, record = (
        ReplayRecorder(lake, request.queue, datetime.now(UTC)),
        list[str](),
        None,
    )
    recorder.begin(found.job_ids)
    try:
        with progress_bar("replaying") as advance:
            async for sent in _replay(queue, found.ids, request, advance):
                job_ids += sent
                recorder.note(sent)
    finally:
        # What went before a failure went, and is asked for later, too.
        record = recorder.end(job_ids)
        if len(job_ids) < len(found.ids):
            done = f"{len(job_ids):,} of {_entries(len(found.ids))} were replayed"
            interrupts.note_done(done)
            if not interrupts.has_come():
                talk(done)
    return job_ids, record


async def _replay(
    queue: Queue, ids: Sequence[str], request: Request, advance: Advance
) -> AsyncIterator[list[str]]:
    """Send them chunk by chunk; the answer is the jobs of each."""
    loop, max_rate = asyncio.get_running_loop(), request.max_rate
    started_s = loop.time()
    size = _chunk_size(max_rate)
    edit = Edits(request.patches) if request.patches else None
    done = 0
    for chunk in in_chunks(ids, size):
        moved = await queue.replay_dlq(len(chunk), ids=chunk, max_rate=max_rate, edit=edit)
        yield moved.job_ids
        done += len(chunk)
        advance(done, len(ids))
        if max_rate is not None and done < len(ids):
            # Each call paces itself; between two of them this does.
            await asyncio.sleep(max(0.0, started_s + done / max_rate - loop.time()))


def _chunk_size(max_rate: float | None) -> int:
    if max_rate is None:
        return CHUNK_MAX
    return max(1, min(CHUNK_MAX, int(max_rate * CHUNK_S)))
