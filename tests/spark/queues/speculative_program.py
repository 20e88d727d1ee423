"""Writes to each server from a cluster with speculation, and tells how many copies Spark ran."""

from __future__ import annotations

import json
import os
import sys

from speculative_source import FOLDER, SpeculativeSource

from chasquimq.spark.session import SessionSettings, open_session

ROWS = 6_000
# Each content comes twice, in partitions of its own or in one.
CONTENTS = ROWS // 2
STAGES_MAX = 100


def main(master: str, *targets: str) -> None:
    spark = open_session(SessionSettings(master=master, conf=conf()))
    spark.dataSource.register(SpeculativeSource)
    rows = spark.range(0, ROWS, 1, 4).selectExpr(f"id % {CONTENTS} n", "concat('o-', id) id")
    copies = {}
    for target in targets:
        url, _, queue = target.rpartition("|")
        for ids in ("content", "own"):
            before = speculative_tasks(spark)
            frame = rows.select("n") if ids == "content" else rows
            writer = frame.repartition(3).write.format("chasqui.speculative").mode("append")
            writer = writer.option("chasqui.redis.url", url).option("queue", f"{queue}-{ids}")
            writer = writer.option("pipelineSize", "100").option("name", "n")
            if ids == "own":
                writer = writer.option("idColumn", "id")
            writer.save()
            copies[f"{target}-{ids}"] = speculative_tasks(spark) - before
    spark.stop()
    print(json.dumps(copies))


def conf() -> dict[str, str]:
    return {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.quantile": "0.3",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.minTaskRuntime": "100ms",
        "spark.executor.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
        f"spark.executorEnv.{FOLDER}": os.environ[FOLDER],
    }


def speculative_tasks(spark) -> int:
    """How many copies Spark started until now, by its own books."""
    store = spark.sparkContext._jsc.sc().statusStore()
    count = 0
    for stage in range(STAGES_MAX):
        for attempt in range(4):
            tasks = store.taskList(stage, attempt, 1_000)
            count += sum(tasks.apply(at).speculative() for at in range(tasks.size()))
    return count


if __name__ == "__main__":
    main(*sys.argv[1:])
