"""Where Pace was."""

from chasquimq.model.pace import Pace

__all__ = ["Pace"]
