"""`chasqui dlq`: looks at dead jobs, sends them back, deletes them or writes them to a file."""

from __future__ import annotations

import click

from chasquimq.cli.app import LazyCommand, LazyGroup

COMMANDS = {
    "edit": LazyCommand(
        "chasquimq.cli.dlq.edit:edit", "Change the data of one dead job and send it back."
    ),
    "export": LazyCommand("chasquimq.cli.dlq.transfer:export", "Write dead jobs as JSON lines."),
    "import": LazyCommand(
        "chasquimq.cli.dlq.transfer:import_", "Add the dead jobs of an exported file."
    ),
    "outcome": LazyCommand(
        "chasquimq.cli.dlq.outcome:outcome", "Show what became of dead jobs that were sent back."
    ),
    "peek": LazyCommand(
        "chasquimq.cli.dlq.peek:peek", "Show the oldest dead jobs, and all of them by reason."
    ),
    "purge": LazyCommand("chasquimq.cli.dlq.edit:purge", "Delete dead jobs for good."),
    "replay": LazyCommand(
        "chasquimq.cli.dlq.replay:replay", "Send dead jobs back to their workers."
    ),
    "triage": LazyCommand(
        "chasquimq.cli.dlq.triage:triage", "Show dead jobs by what went wrong, and at what cost."
    ),
}


@click.group(cls=LazyGroup, lazy=COMMANDS)
def dlq() -> None:
    """Look at dead jobs, send them back, delete them or write them to a file."""
