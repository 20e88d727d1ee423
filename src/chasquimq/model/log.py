"""Loggers whose calls never raise: what a user's logging set-up raises harms no job and no loop.

No handler is added here, not even a silent one: where a program sets up no logging, Python writes
warnings to stderr, and a buried job or a server that is away must not go unseen.

Whatever belongs to a record is named `chasqui_…`, so that it clashes with no field of the user's.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from chasquimq.model.pace import Pace

PREFIX = "chasqui_"
# From the logging module back to the line that logs: `_log` and the method of the level between.
_STACK_LEVEL = 3


class SafeLogger:
    """A logger of the standard library behind a guard; keys of `extra` are given our prefix."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)
        self._pace = Pace()

    def debug(self, message: str, *args: Any, **more: Any) -> None:
        self._log(logging.DEBUG, message, args, **more)

    def info(self, message: str, *args: Any, **more: Any) -> None:
        self._log(logging.INFO, message, args, **more)

    def warning(self, message: str, *args: Any, **more: Any) -> None:
        self._log(logging.WARNING, message, args, **more)

    def error(self, message: str, *args: Any, **more: Any) -> None:
        self._log(logging.ERROR, message, args, **more)

    def exception(self, message: str, *args: Any, exc_info: Any = True, **more: Any) -> None:
        self._log(logging.ERROR, message, args, exc_info=exc_info, **more)

    def log(self, level: int, message: str, *args: Any, **more: Any) -> None:
        self._log(level, message, args, **more)

    def _log(
        self,
        level: int,
        message: str,
        args: tuple[Any, ...],
        *,
        exc_info: Any = None,
        extra: Mapping[str, object] | None = None,
    ) -> None:
        try:
            named = {PREFIX + key: value for key, value in (extra or {}).items()}
            self._logger.log(
                level, message, *args, exc_info=exc_info, extra=named, stacklevel=_STACK_LEVEL
            )
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - filters and handlers are the user's
            self._complain(error)

    def _complain(self, error: BaseException) -> None:
        """Say on stderr that logging raised; not the record's words, which may be a secret."""
        if not self._pace.allows():
            return
        # A process without a console has no stderr.
        with suppress(Exception):
            where = traceback.extract_tb(error.__traceback__)[-1]
            sys.stderr.write(
                f"{self._logger.name}: a log call must not raise, but {type(error).__name__} came "
                f"from {where.filename}:{where.lineno}; check the filters, the handlers and the "
                "record factory of your logging set-up\n"
            )


def get_logger(name: str) -> SafeLogger:
    """The logger of a module."""
    return SafeLogger(name)
