"""Queues as DataFrames: rows become jobs, and the jobs of a queue become rows."""
