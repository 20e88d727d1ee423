"""`chasqui pipeline`: the history of queues in tables, and answers from them."""

from __future__ import annotations

import click

from chasquimq.cli.main import Group
from chasquimq.cli.pipeline_backfill import backfill
from chasquimq.cli.pipeline_check import check
from chasquimq.cli.pipeline_compact import compact
from chasquimq.cli.pipeline_report import report
from chasquimq.cli.pipeline_run import once, run
from chasquimq.cli.pipeline_sql import sql
from chasquimq.cli.pipeline_status import status


@click.group(cls=Group)
def pipeline() -> None:
    """Carry the history of queues into tables, and ask them.

    run, once and backfill need Spark and Java; all else reads the tables without them.
    """


for _command in (run, once, status, check, compact, backfill, sql, report):
    pipeline.add_command(_command)
