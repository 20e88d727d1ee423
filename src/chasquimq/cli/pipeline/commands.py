"""`chasqui pipeline`: the history of queues in tables, and answers from them."""

from __future__ import annotations

import click

from chasquimq.cli.app import Group
from chasquimq.cli.pipeline.maintain import backfill, compact, sql
from chasquimq.cli.pipeline.report import report
from chasquimq.cli.pipeline.run import once, run
from chasquimq.cli.pipeline.status import check, status


@click.group(cls=Group)
def pipeline() -> None:
    """Carry the history of queues into tables, and ask them.

    run, once and backfill need Spark and Java; all else reads the tables without them.
    """


for _command in (run, once, status, check, compact, backfill, sql, report):
    pipeline.add_command(_command)
