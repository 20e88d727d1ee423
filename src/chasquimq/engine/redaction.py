"""Lets a user's hook change error text before it is stored; what the hook raises ends here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chasquimq.model.log import get_logger
from chasquimq.model.verdict import describe

if TYPE_CHECKING:
    from chasquimq.settings import Redact

logger = get_logger(__name__)
WITHHELD = "<withheld: the redact hook failed>"


class Redaction:
    """The hook of one worker; where it fails, no word of the error is told."""

    def __init__(self, hook: Redact) -> None:
        self._hook = hook
        self._has_warned = False

    def __call__(self, error_type: str, message: str) -> str:
        try:
            redacted = self._hook(error_type, message)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - a user's hook may raise anything
            return self._withhold(f"raised {describe(error).error_type}")
        # Callers lie.
        if not isinstance(redacted, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            return self._withhold(f"returned {type(redacted).__name__}")
        return redacted

    def _withhold(self, what: str) -> str:
        # Only the kind of trouble: its words may be the very ones that must not be told.
        if not self._has_warned:
            self._has_warned = True
            logger.warning("the redact hook must return text, errors are withheld: it %s", what)
        return WITHHELD
