"""Worker: runs the jobs of one queue."""

from __future__ import annotations

from chasquimq.settings import CredentialProvider
from chasquimq.worker.handlers import Handler, HandlerFunction
from chasquimq.worker.worker import Worker

__all__ = ["CredentialProvider", "Handler", "HandlerFunction", "Worker"]
