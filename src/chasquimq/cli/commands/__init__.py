"""Holds the commands that need no package of their own."""
