"""Finds a Redis or Valkey server, or starts one: shared by a project, or for one session."""

from chasquimq.server.finder import Found, find_or_start, find_server, resolve_server
from chasquimq.server.project import ProjectServer, ServerStatus
from chasquimq.server.session import SessionServer

__all__ = [
    "Found",
    "ProjectServer",
    "ServerStatus",
    "SessionServer",
    "find_or_start",
    "find_server",
    "resolve_server",
]
