"""Runs handlers in child processes."""
