"""Runs the `chasqui` command; each subcommand is imported only when it runs."""
