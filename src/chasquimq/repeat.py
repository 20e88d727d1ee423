"""Value types that users hand to a queue: how long to wait between attempts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class BackoffSpec:
    """How long a failed job waits; None leaves a value to the worker."""

    kind: str
    delay_ms: int
    max_delay_ms: int | None = None
    multiplier: float | None = None
    jitter_ms: int | None = None

    @classmethod
    def fixed(cls, delay_ms: int, jitter_ms: int | None = None) -> BackoffSpec:
        """The same wait every time."""
        return cls("fixed", delay_ms, jitter_ms=jitter_ms)

    @classmethod
    def exponential(
        cls,
        initial_ms: int,
        *,
        multiplier: float = 2.0,
        max_ms: int | None = None,
        jitter_ms: int | None = None,
    ) -> BackoffSpec:
        """A wait that grows with each attempt, up to `max_ms`."""
        return cls("exponential", initial_ms, max_ms, multiplier, jitter_ms)

    def to_dict(self) -> dict[str, Any]:
        """The dict form; unset values are left out."""
        given = {
            "kind": self.kind,
            "delay_ms": self.delay_ms,
            "max_delay_ms": self.max_delay_ms,
            "multiplier": self.multiplier,
            "jitter_ms": self.jitter_ms,
        }
        return {key: value for key, value in given.items() if value is not None}
