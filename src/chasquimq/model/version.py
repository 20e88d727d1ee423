"""Holds the version of this package, the only place that has it."""

__version__ = "0.1.0"
