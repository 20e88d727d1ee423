"""`chasqui spark`: what runs on Spark beside the pipeline."""

from __future__ import annotations

import click

from chasquimq.cli.app import Group
from chasquimq.cli.spark.enqueue import enqueue
from chasquimq.cli.spark.worker import stop, worker


@click.group(cls=Group)
def spark() -> None:
    """Put Spark to work for queues; needs Spark and Java."""


spark.add_command(enqueue)
spark.add_command(worker)
spark.add_command(stop)
