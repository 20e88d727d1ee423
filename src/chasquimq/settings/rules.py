"""What settings are counted in and checked by."""

from __future__ import annotations

from typing import Any, TypeVar

from chasquimq.errors import LimitExceeded, SettingsError

MIB = 1024 * 1024
Settings = TypeVar("Settings")


def at_least(name: str, found: float, floor: float) -> None:
    """Refuse what is no number, and a number below its floor."""
    # Callers lie.
    is_number = isinstance(found, int | float)  # pyright: ignore[reportUnnecessaryIsInstance]
    if isinstance(found, bool) or not is_number:
        raise SettingsError(name, found, "a number")
    if found < floor:
        raise LimitExceeded(name, found, f"at least {floor}")


def given(kind: type[Settings], **values: Any) -> Settings:
    """Settings of that kind; a value of None leaves its default."""
    return kind(**{name: value for name, value in values.items() if value is not None})
