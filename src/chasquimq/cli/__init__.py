"""The `chasqui` command: one file a command, each imported only when it runs."""
