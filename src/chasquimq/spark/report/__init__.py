"""Builds the report about a lake."""
