"""Writes log lines safely, and limits how often the same line is written."""

from __future__ import annotations

import logging
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

# ── throttle ──────────────────────────────────────────────────────────────────────────────────────

_QUIET_S_MIN = 60.0
_QUIET_S_MAX = 3_600.0


class LogThrottle:
    """Allows the first message, then ever fewer; `held_back` counts those refused since.

    Ask `allows` before each message.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._quiet_s = _QUIET_S_MIN / 2
        self._quiet_until_s = float("-inf")
        # When the last message was let through, and the one before it.
        self._last_s = self._before_s = now_s()
        self.held_back = 0

    def allows(self) -> bool:
        now_s = self._now_s()
        if now_s < self._quiet_until_s:
            self.held_back += 1
            return False
        self._quiet_s = min(self._quiet_s * 2, _QUIET_S_MAX)
        self._quiet_until_s = now_s + self._quiet_s
        self._before_s, self._last_s = self._last_s, now_s
        return True

    def held_back_text(self) -> str:
        """The end of an allowed message: how many like it were not logged; empty for none."""
        count = self.take_held_back()
        if not count:
            return ""
        seconds = self._last_s - self._before_s
        return f"; {count:,} more like it were not logged in the {seconds:,.0f} s before"

    def take_held_back(self) -> int:
        """Return how many were refused, and count from zero again."""
        held_back, self.held_back = self.held_back, 0
        return held_back


# ── logger ────────────────────────────────────────────────────────────────────────────────────────

PREFIX = "chasqui_"
# From the logging module back to the line that logs: `_log` and the method of the level between.
_STACK_LEVEL = 3


class SafeLogger:
    """A logger of the standard library that never raises and prefixes the keys of `extra`."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)
        self._throttle = LogThrottle()

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
        """Report on stderr that logging raised, without the message, which may hold a secret."""
        if not self._throttle.allows():
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
