"""Fills a queue as programs do that know nothing of our sessions: a plain builder, no environment."""

import os
import sys

from pyspark.sql import SparkSession

from chasquimq.spark.jvm import find_java
from chasquimq.spark.queues.enqueue import enqueue

if __name__ == "__main__":
    url, queue = sys.argv[1:]
    os.environ["JAVA_HOME"] = str(find_java().home)
    session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    print(enqueue(session.getOrCreate().range(3), queue, redis_url=url, name="n").to_json())
