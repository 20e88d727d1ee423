"""A pipeline in a process of its own that kills itself where it is told to.

    pipeline_program.py URL QUEUE LAKE MOMENT

MOMENT: `before-manifest`, `after-commits:N`, `before-forgetting` the manifest, `after-batch`, which
Spark has not noted yet, or `never`.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from chasquimq.settings import ConnectionSettings
from chasquimq.spark.lake.lake import Lake
from chasquimq.spark.lake.manifest import ManifestFile
from chasquimq.spark.pipeline.batches import Batches
from chasquimq.spark.pipeline.pipeline import Pipeline
from chasquimq.spark.pipeline.settings import PipelineSettings
from chasquimq.spark.session import SessionSettings, open_session


def main(url: str, queue: str, lake: str, moment: str) -> None:
    arrange(moment)
    settings = PipelineSettings(
        lake=Path(lake),
        queues=(queue,),
        connection=ConnectionSettings(url=url),
        max_rows_per_batch=1_000,
    )
    session = open_session(SessionSettings(master="local[2]", memory_mb=640))
    run = Pipeline(session, settings).once()
    print(run.batches, run.rows)
    session.stop()


def arrange(moment: str) -> None:
    if moment == "before-manifest":
        ManifestFile.write = lambda *_: die()
    elif moment == "after-batch":
        Batches.__call__ = dying_after(Batches.__call__)
    elif moment == "before-forgetting":
        Path.unlink = lambda *_, **__: die()
    elif moment.startswith("after-commits:"):
        die_after(int(moment.partition(":")[2]))


def dying_after(call):
    def called(self, *args) -> None:
        call(self, *args)
        die()

    return called


def die_after(count: int) -> None:
    commit = Lake.commit
    made = []

    def counting(self, change, once=None):
        answer = commit(self, change, once)
        made.append(change.table)
        if len(made) == count:
            die()
        return answer

    Lake.commit = counting


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
