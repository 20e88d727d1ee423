"""Moments as people and programs read them: ISO 8601, UTC, milliseconds."""

from __future__ import annotations

from datetime import UTC, datetime

_MS_MAX = 253_402_300_799_999


def iso(ms: object) -> str:
    """The moment in text; what is no moment of our calendar is a dash."""
    if not isinstance(ms, int) or not 0 <= ms <= _MS_MAX:
        return "-"
    moment = datetime.fromtimestamp(ms // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{ms % 1000:03d}Z"
