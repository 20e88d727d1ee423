"""`chasqui spark`: fills queues and runs handlers on Spark."""

from __future__ import annotations

import click

from chasquimq.cli.app import LazyCommand, LazyGroup

COMMANDS = {
    "enqueue": LazyCommand(
        "chasquimq.cli.spark.enqueue:enqueue",
        "Add every row of a table, of files or of a query as a job.",
    ),
    "stop": LazyCommand(
        "chasquimq.cli.spark.worker:stop",
        "End the tasks of a queue as soon as their jobs are done.",
    ),
    "worker": LazyCommand(
        "chasquimq.cli.spark.worker:worker", "Run the jobs of a queue in tasks of Spark."
    ),
}


@click.group(cls=LazyGroup, lazy=COMMANDS)
def spark() -> None:
    """Put Spark to work for queues; needs Spark and Java."""
