"""Registers the data source `chasqui.history`; Spark looks for modules with this beginning."""

from chasquimq.spark.sources.history import HistorySource as DefaultSource

__all__ = ["DefaultSource"]
