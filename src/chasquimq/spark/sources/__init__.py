"""The data sources `chasqui.history` and `chasqui.events`."""
