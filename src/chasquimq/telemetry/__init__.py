"""Metrics and traces of this process: records, sinks, exporters, an HTTP endpoint."""
