"""Registers the data source `chasqui.events`; Spark looks for modules with this beginning."""

from chasquimq.spark.sources.events import EventsSource as DefaultSource

__all__ = ["DefaultSource"]
