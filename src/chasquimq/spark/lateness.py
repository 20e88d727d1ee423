"""How much patience there is with Python processes of Spark that start too late."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from chasquimq.errors import ProcessLate

# Each costs Spark's ten seconds: a minute of them is no busy moment, but a broken Python.
LATE_MAX: Final = 6


class Lateness:
    """Counts late processes in a row; one that came in time begins a new row."""

    def __init__(self) -> None:
        self.count = 0

    def bear(self, late: ProcessLate) -> None:
        """Count one more.

        Raises:
            ProcessLate: it was the last that is borne.
        """
        self.count += 1
        if self.count >= LATE_MAX:
            raise late

    def forget(self) -> None:
        """Begin anew: all queries go on."""
        self.count = 0
