"""The adding side of a queue on the server."""
