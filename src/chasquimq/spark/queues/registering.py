"""Makes the source `chasqui` known to sessions whose Python is another than that of the program."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, Any

from chasquimq.spark.queues.source import QueueSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(session: SparkSession) -> None:
    """Let a session of this machine find the source where Spark would look in another Python.

    Spark looks for sources with the first `python3` of the path, unless `PYSPARK_PYTHON` says
    which. Sessions of other machines are left alone: what their Python is called is theirs.
    """
    if getattr(session, "_jvm", None) is None:
        return
    context: Any = session.sparkContext
    if not context.master.startswith("local") or _is_ours(context.pythonExec):
        return
    theirs, context.pythonExec = context.pythonExec, sys.executable
    try:
        session.dataSource.register(QueueSource)
    finally:
        context.pythonExec = theirs


def _is_ours(python: str) -> bool:
    # Links are not followed: that of an environment leads to a Python without its packages.
    return shutil.which(python) == sys.executable
