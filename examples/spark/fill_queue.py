"""Fill a queue from Parquet: 100,000 orders become jobs, and a second write adds none again."""

import os
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from chasquimq.server import SessionServer
from chasquimq.spark.queues.enqueue import enqueue
from chasquimq.spark.session import SessionSettings, open_session

QUEUE = "example-orders"
ORDERS = 100_000


# region write
def fill(orders: DataFrame, url: str) -> None:
    (
        orders.write.format("chasqui")
        .option("chasqui.redis.url", url)
        .option("queue", QUEUE)
        .option("idColumn", "order_id")
        .option("name", "charge")
        .mode("append")
        .save()
    )


# endregion


# region enqueue
def fill_again(orders: DataFrame, url: str) -> None:
    done = enqueue(orders, QUEUE, redis_url=url, id_column="order_id", name="charge")
    print(f"{done.rows:,} rows: {done.added:,} added, {done.duplicates:,} were there")


# endregion


# region read
def waiting(spark: SparkSession, url: str) -> DataFrame:
    return (
        spark.read.format("chasqui")
        .option("chasqui.redis.url", url)
        .option("queue", QUEUE)
        .option("read", "stream")
        .option("payloadSchema", "customer string, cents bigint")
        .load()
    )


# endregion


def main(spark: SparkSession, url: str, folder: Path) -> None:
    spark.range(0, ORDERS, 1, 2).selectExpr(
        "concat('order-', id) order_id", "concat('customer-', id % 100) customer", "id % 500 cents"
    ).write.parquet(f"{folder}/orders")
    orders = spark.read.parquet(f"{folder}/orders")
    fill(orders, url)
    fill_again(orders, url)
    best = waiting(spark, url).groupBy("payload.customer").sum("payload.cents")
    row = best.orderBy("customer").first()
    assert row is not None
    print(f"{waiting(spark, url).count():,} jobs wait; {row[0]} owes {row[1]:,} cents")


if __name__ == "__main__":
    server = SessionServer()  # started only when CHASQUI_REDIS_URL names none
    address = os.environ.get("CHASQUI_REDIS_URL") or server.start().url
    with tempfile.TemporaryDirectory() as folder:
        session = open_session(SessionSettings(master="local[2]"))
        main(session, address, Path(folder))
        session.stop()
    server.stop()
