"""`chasqui pipeline`: carries the history of queues into tables, and answers from them."""

from __future__ import annotations

import click

from chasquimq.cli.app import LazyCommand, LazyGroup

COMMANDS = {
    "backfill": LazyCommand(
        "chasquimq.cli.pipeline.run:backfill", "Make the tables of one day again."
    ),
    "check": LazyCommand(
        "chasquimq.cli.pipeline.status:check",
        "Compare how long queues keep their history with how often it is read.",
    ),
    "compact": LazyCommand(
        "chasquimq.cli.pipeline.run:compact",
        "Merge rows, join small files, delete what was replaced.",
    ),
    "once": LazyCommand(
        "chasquimq.cli.pipeline.run:once", "Read what is there, compact the tables, and stop."
    ),
    "report": LazyCommand(
        "chasquimq.cli.pipeline.report:report",
        "Write one HTML page about the lake, and print the same.",
    ),
    "run": LazyCommand(
        "chasquimq.cli.pipeline.run:run", "Keep the tables up to date until a signal."
    ),
    "sql": LazyCommand("chasquimq.cli.pipeline.report:sql", "Answer one SELECT from the tables."),
    "status": LazyCommand(
        "chasquimq.cli.pipeline.status:status", "Show how far the tables are, and what they lack."
    ),
}


@click.group(cls=LazyGroup, lazy=COMMANDS)
def pipeline() -> None:
    """Carry the history of queues into tables, and ask them.

    run, once and backfill need Spark and Java; all else reads the tables without them.
    """
