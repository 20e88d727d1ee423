"""Builders and waiters that every room of tests may use."""
