"""Carries history and events into the tables of a lake."""
