"""Writes to each server with tasks that come to harm, and tells how many copies Spark ran."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter

from killing_source import KillingSource
from speculative_source import FOLDER, SpeculativeSource

from chasquimq.spark.session import SessionSettings, open_session
from support.row_storm import PARTITIONS, ROWS

SOURCES = {source.name(): source for source in (KillingSource, SpeculativeSource)}
# Each content comes twice, in partitions of its own or in one.
CONTENTS = ROWS // 2
STAGES_MAX = 100
ATTEMPTS_MAX = 6


def main(source: str, master: str, *targets: str) -> None:
    conf = cluster_conf() if master.startswith("spark://") else {}
    spark = open_session(SessionSettings(master=master, conf=conf))
    spark.dataSource.register(SOURCES[source])
    rows = spark.range(0, ROWS, 1, 4).selectExpr(f"id % {CONTENTS} n", "concat('o-', id) id")
    copies = {}
    for target in targets:
        url, _, queue = target.rpartition("|")
        for ids in ("content", "own"):
            frame = rows.select("n") if ids == "content" else rows
            writer = frame.repartition(PARTITIONS).write.format(source).mode("append")
            writer = writer.option("chasqui.redis.url", url).option("queue", f"{queue}-{ids}")
            writer = writer.option("pipelineSize", "100").option("name", "n")
            if ids == "own":
                writer = writer.option("idColumn", "id")
            writer.save()
            copies[f"{url} {ids}"] = copies_of_the_last_stage(spark)
    spark.stop()
    print(json.dumps(copies))


def cluster_conf() -> dict[str, str]:
    return {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        # A stage that has no more tasks than an executor has room for needs no other reason.
        "spark.speculation.task.duration.threshold": "1s",
        "spark.executor.cores": str(PARTITIONS),
        "spark.executor.memory": "512m",
        "spark.task.maxFailures": "8",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
        f"spark.executorEnv.{FOLDER}": os.environ[FOLDER],
    }


def copies_of_the_last_stage(spark) -> dict[int, int]:
    """How many copies of each task Spark started, by its own books; tasks of the last stage write."""
    store = spark.sparkContext._jsc.sc().statusStore()
    last = max(at for at in range(STAGES_MAX) if store.taskList(at, 0, 1).size())
    copies: Counter[int] = Counter()
    for attempt in range(ATTEMPTS_MAX):
        tasks = store.taskList(last, attempt, 1_000)
        told = [tasks.apply(at) for at in range(tasks.size())]
        copies.update(one.partitionId() for one in told if one.speculative())
    return copies


if __name__ == "__main__":
    main(*sys.argv[1:])
