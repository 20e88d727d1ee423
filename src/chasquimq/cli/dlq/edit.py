"""Changes one dead job and sends it back, or deletes dead jobs for good."""

from __future__ import annotations

import asyncio
import difflib
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from chasquimq.cli.commands.add import read_json
from chasquimq.cli.context import (
    Visit,
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
from chasquimq.cli.dlq.peek import pages
from chasquimq.cli.dlq.replay import Request, replay_all
from chasquimq.cli.dlq.replay import show as show_replayed
from chasquimq.cli.dlq.select import Patch, PatchType, patched, refuse_new_fields
from chasquimq.cli.output.render import clean, counted, emit_json
from chasquimq.cli.output.terminal import confirm_name, progress_bar
from chasquimq.cli.pipeline.options import lake_option, refuse_named_lake
from chasquimq.cli.values import DURATION, duration_text
from chasquimq.errors import EditRefused, SettingsError, StoreError
from chasquimq.model.json_value import json_value, value_of_json

if TYPE_CHECKING:
    from chasquimq.queue.dlq import DeadLetter
    from chasquimq.queue.queue import Queue

EDITOR_DEFAULT = "vi"


@click.command()
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
    if patches and data is not None:
        raise click.UsageError("--set changes a part and --data replaces all; give one")
    refuse_named_lake(lake)
    value = None if data is None else value_of_json(read_json(data))
    url = running_server(redis_url)
    found = run(_find_data(queue, url, job))
    if patches:
        found = _with_patches(found, patches)
    else:
        found = _with_editor(found) if data is None else found._replace(after=value)
    _refuse_no_change(found)
    if not as_json:
        _show_difference(found)
    request = Request(
        queue=queue, limit=1, ids=(found.dlq_id,), filters={}, patches=(found.patch,),
        is_dry=is_dry, is_sure=is_sure, max_rate=None,
    )  # fmt: skip
    show_replayed(run(replay_all(request, url, lake)), request, as_json)


class Edit(NamedTuple):
    """A dead job, its data, and what that shall be."""

    dlq_id: str
    job_id: str
    before: Any
    after: Any

    @property
    def patch(self) -> Patch:
        """The change as a replay makes it: all of the data is replaced."""
        return Patch("the new data", (), self.after)


async def _find_data(queue: str, url: str, wanted: str) -> Edit:
    """The dead job of that job id or DLQ id, with its data as it is.

    Raises:
        StoreError: it is not in the DLQ, or not readable.
    """
    from chasquimq.queue.inspector import open_envelope

    async with visit(queue, url) as seen:
        letter = await _find(seen.queue, wanted)
    contents = open_envelope(letter["payload"])
    if contents is None or not contents.is_decoded:
        raise StoreError(
            f"the data of {wanted!r} must be readable to be edited, and it is not; "
            "`chasqui dlq export` writes its bytes"
        )
    return Edit(letter["dlq_id"], contents.job_id, contents.data, contents.data)


def _with_patches(edit: Edit, patches: Sequence[Patch]) -> Edit:
    """The edit with changes made by paths; one that does not fit is wrong."""
    try:
        refuse_new_fields(edit.before, patches)
        return edit._replace(after=patched(edit.before, patches))
    except EditRefused as refused:
        text = " ".join(patch.text for patch in patches)
        raise SettingsError("set", text, f"a change that fits the data ({refused})") from None


def _with_editor(edit: Edit) -> Edit:
    """The edit as a person makes it, in the editor of the environment."""
    editor = _editor()
    if value_of_json(json_value(edit.before)) != edit.before:
        raise StoreError(
            "the data holds what JSON cannot say, such as a time or a key that is no text; "
            "change parts of it with --set"
        )
    descriptor, name = tempfile.mkstemp(prefix=".chasqui-edit-", suffix=".json")
    draft = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(_pretty(edit.before))
        _run_editor(editor, draft)
        text = draft.read_text("utf-8")
    finally:
        draft.unlink(missing_ok=True)
    try:
        return edit._replace(after=value_of_json(json.loads(text)))
    except (ValueError, RecursionError) as error:
        raise SettingsError(
            "data", text[:60], f"JSON ({error})", hint="nothing was changed"
        ) from None


def difference(edit: Edit) -> list[str]:
    """What changes, line by line."""
    before, after = _pretty(edit.before).splitlines(), _pretty(edit.after).splitlines()
    return [
        clean(line)
        for line in difflib.unified_diff(before, after, "dead", "edited", lineterm="", n=2)
    ]


def _refuse_no_change(edit: Edit) -> None:
    """Raise where the data would stay as it is: `dlq replay` sends it back so."""
    if edit.after == edit.before and not difference(edit):
        hint = f"chasqui dlq replay --id {edit.dlq_id} sends the job back as it is"
        raise StoreError(f"the edit must change the data, and changes nothing; {hint}")


def _show_difference(edit: Edit) -> None:
    """Print it on stderr: the answer comes later."""
    click.echo("\n".join(difference(edit)), err=True)


async def _find(queue: Queue, wanted: str) -> DeadLetter:
    """By job id the newest of that id: the others died before it."""
    found: DeadLetter | None = None
    with progress_bar("reading the DLQ") as advance:
        seen = 0
        async for page in pages(queue, {}):
            for letter in page:
                if letter["dlq_id"] == wanted:
                    return letter
                if letter["job_id"] == wanted:
                    found = letter
            seen += len(page)
            advance(seen, 0)
    if found is None:
        raise StoreError(
            f"no dead job of {queue.name} has the id {wanted!r}; `chasqui dlq peek` shows ids"
        )
    return found


def _editor() -> str:
    named = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    if not named and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise StoreError(
            f"an editor needs a terminal, or a program that EDITOR names, and {EDITOR_DEFAULT} was "
            "not started without; change the data with --set or --data"
        )
    return named or EDITOR_DEFAULT


def _run_editor(editor: str, draft: Path) -> None:
    try:
        code = subprocess.run([*shlex.split(editor), str(draft)], check=False).returncode
    except (OSError, ValueError) as error:
        raise StoreError(
            f"the editor {editor!r} must start and did not ({error}); set EDITOR, or use --set "
            "or --data"
        ) from None
    if code:
        raise StoreError(f"the editor {editor!r} ended with code {code}; nothing was changed")


def _pretty(value: Any) -> str:
    return json.dumps(json_value(value), indent=2, ensure_ascii=False) + "\n"


LOOK_S = 0.25


@click.command()
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
    meant = _filters_of(filters, ids=ids or None, older_than_ms=older_than_ms)
    if bool(meant) == is_all:
        raise click.UsageError("say what to delete: either some filters, or --all.")
    _show_purged(run(_purge_all(queue, running_server(redis_url), meant, is_sure)), as_json)


async def _purge_all(queue: str, url: str, meant: Mapping[str, Any], is_sure: bool) -> int:
    """Ask, then delete; without filters every entry is meant."""
    async with visit(queue, url) as seen:
        depth = (await seen.inspector.snapshot(queue)).dlq_depth
        if not is_sure:
            confirm_name(_question(queue, depth, meant), queue)
        return await _purge(seen, queue, depth, meant)


def _show_purged(removed: int, as_json: bool) -> None:
    """Print how many are gone."""
    if as_json:
        emit_json({"purged": removed})
    else:
        click.echo(f"purged {counted(removed, 'entry', 'entries')}")


async def _purge(seen: Visit, queue: str, depth: int, meant: Mapping[str, Any]) -> int:
    purging = asyncio.ensure_future(seen.queue.purge_dlq(**meant, all=not meant))
    try:
        with progress_bar("purging") as advance:
            while not (await asyncio.wait([purging], timeout=LOOK_S))[0]:
                left = (await seen.inspector.snapshot(queue)).dlq_depth
                # With filters it is not known how many will go.
                advance(max(0, depth - left), 0 if meant else depth)
    finally:
        purging.cancel()
    return await purging


def _question(queue: str, depth: int, meant: Mapping[str, Any]) -> str:
    if not meant:
        return f"all {counted(depth, 'dead job')} of {clean(queue)} will be deleted for good"
    filters = ", ".join(_filter_text(name, value) for name, value in meant.items())
    return f"the dead jobs of {clean(queue)} with {clean(filters)} will be deleted for good"


def _filter_text(name: str, value: Any) -> str:
    if name == "older_than_ms":
        return f"an age over {duration_text(value)}"
    return f"{name} {', '.join(value) if name == 'ids' else value}"


def _filters_of(filters: dict[str, str | None], **more: Any) -> dict[str, Any]:
    return {name: value for name, value in {**filters, **more}.items() if value is not None}
