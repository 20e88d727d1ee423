"""Writes dead jobs as JSON lines that a program can read, and a person too."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chasquimq.cli.dlq_peek import Filters, data_facts, entry_facts, pages
from chasquimq.cli.files import whole_file
from chasquimq.cli.progress import progress_bar
from chasquimq.cli.render import json_text
from chasquimq.cli.visit import visit
from chasquimq.errors import StoreError

if TYPE_CHECKING:
    from chasquimq.queue.dead_letters import DeadLetter

Write = Callable[[str], None]


async def export_all(
    queue: str, url: str, filters: Filters, limit: int | None, output: Path | None
) -> None:
    """Write every match, oldest first; how many goes to stderr."""
    async with visit(queue, url) as seen:
        depth = (await seen.inspector.snapshot(queue)).dlq_depth
        written = 0
        with _lines_to(output) as write, progress_bar("exporting") as advance:
            async for page in pages(seen.queue, filters, limit):
                for letter in page:
                    write(json_text(export_facts(letter)))
                written += len(page)
                advance(written, depth)
    click.echo(f"exported {written:,} entries", err=True)


def export_facts(letter: DeadLetter) -> dict[str, Any]:
    """One line: all that is known of the entry, its data, and its envelope as it was buried."""
    from chasquimq.inspector import open_envelope

    contents = open_envelope(letter["payload"])
    return {
        **entry_facts(letter),
        "created_at_ms": contents.created_at_ms if contents else None,
        **data_facts(letter),
        "envelope_base64": b64encode(letter["payload"]).decode(),
    }


@contextmanager
def _lines_to(output: Path | None) -> Generator[Write]:
    if output is None:
        yield click.echo
        return
    try:
        # Payloads may hold anything that its producers thought only workers would read.
        with whole_file(output, is_private=True) as file:
            yield lambda line: print(line, file=file)
    except OSError as error:
        raise StoreError(
            f"{output} must be a file that can be written: {error.strerror}"
        ) from error
