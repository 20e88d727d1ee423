"""Prints answers, shows progress, asks questions."""
