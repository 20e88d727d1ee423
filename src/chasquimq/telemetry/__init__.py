"""Telemetry: what happened in this process, for whoever wants to count it."""
