"""Rows of the sources as rows of the tables."""
