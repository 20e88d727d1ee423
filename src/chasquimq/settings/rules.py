"""What settings are counted in and checked by."""

from __future__ import annotations

from typing import Any, TypeVar

from chasquimq.errors import LimitExceeded, SettingsError
from chasquimq.model.options import whole

MIB = 1024 * 1024
Settings = TypeVar("Settings")


def at_least(name: str, found: int, floor: int, *, hint: str = "") -> None:
    """Refuse what is no whole number, and a number below its floor."""
    if whole(name, found) < floor:
        raise LimitExceeded(name, found, f"at least {floor}", hint=hint)


def number_at_least(name: str, found: float, floor: float) -> None:
    """The same where fractions are welcome."""
    # Callers lie.
    is_number = isinstance(found, int | float)  # pyright: ignore[reportUnnecessaryIsInstance]
    if isinstance(found, bool) or not is_number:
        raise SettingsError(name, found, "a number")
    if found < floor:
        raise LimitExceeded(name, found, f"at least {floor}")


def true_or_false(name: str, found: bool) -> None:
    """Refuse what only counts as one of them: "no" would count as True."""
    if not isinstance(found, bool):  # pyright: ignore[reportUnnecessaryIsInstance]  callers lie
        raise SettingsError(name, found, "True or False")


def of_kind(name: str, found: object, kind: type, *, hint: str = "") -> None:
    """Refuse what is no instance of that class."""
    if not isinstance(found, kind):
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        raise SettingsError(name, found, f"{article} {kind.__name__}", hint=hint)


def given(kind: type[Settings], **values: Any) -> Settings:
    """Settings of that kind; a value of None leaves its default."""
    return kind(**{name: value for name, value in values.items() if value is not None})
