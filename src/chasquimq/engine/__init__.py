"""The loops; each moves jobs one step."""
