"""The consuming side of a queue on the server: read, decode, lease, settle."""
