"""Reads a lake without a JVM and answers questions about it."""
