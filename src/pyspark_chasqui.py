"""Registers the data source `chasqui`; Spark looks for modules with this beginning."""

from chasquimq.spark.queues.source import QueueSource as DefaultSource

__all__ = ["DefaultSource"]
