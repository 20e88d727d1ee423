"""Finds a Redis or Valkey server, or starts one: shared by a project, or for one session."""

from chasquimq.server.finder import (
    Found,
    ProjectServer,
    ServerStatus,
    find_or_start,
    find_server,
    resolve_server,
)
from chasquimq.server.launch import SessionServer

__all__ = [
    "Found",
    "ProjectServer",
    "ServerStatus",
    "SessionServer",
    "find_or_start",
    "find_server",
    "resolve_server",
]
