"""Writes to each server with tasks that are killed: a session of its own, where tasks are retried."""

from __future__ import annotations

import sys

from killing_source import KillingSource

from chasquimq.spark.session import SessionSettings, open_session

ROWS = 6_000
# Each content comes twice, in partitions of its own or in one.
CONTENTS = ROWS // 2


def main(*targets: str) -> None:
    spark = open_session(SessionSettings(master="local[2,3]"))
    spark.dataSource.register(KillingSource)
    rows = spark.range(0, ROWS, 1, 4).selectExpr(f"id % {CONTENTS} n", "concat('o-', id) id")
    for target in targets:
        url, _, queue = target.rpartition("|")
        for ids in ("content", "own"):
            frame = rows.select("n") if ids == "content" else rows
            writer = frame.repartition(3).write.format("chasqui.killing").mode("append")
            writer = writer.option("chasqui.redis.url", url).option("queue", f"{queue}-{ids}")
            writer = writer.option("pipelineSize", "100").option("name", "n")
            if ids == "own":
                writer = writer.option("idColumn", "id")
            writer.save()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
