"""Compares the rows of a lake with the counters of the server."""
