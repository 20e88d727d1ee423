"""Turns a budget of bytes into a length that XADD can hold a history to."""

from __future__ import annotations

_WRITES_PER_LOOK = 64
# Under a small budget few writes are many bytes: look again after this share of it.
_BUDGET_SHARE_PER_LOOK = 16


class HistoryCap:
    """Knows when to ask the server for the size of the history, and what follows from it."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._writes = _WRITES_PER_LOOK
        self._written_bytes = 0
        self._entry_bytes = 0
        # Entries that the history may have; 0 while it is far from its budget.
        self.len_max = 0

    @property
    def is_look_due(self) -> bool:
        """True at the first write of a run, too: others may have filled the history before."""
        has_written_much = self._written_bytes * _BUDGET_SHARE_PER_LOOK >= self._bytes_max
        return self._writes >= _WRITES_PER_LOOK or has_written_much

    def wrote(self, size_bytes: int) -> None:
        self._writes += 1
        self._written_bytes += size_bytes
        self._entry_bytes = size_bytes

    def learn(self, size_bytes: int | None, length: int) -> None:
        """Take what the server measured; entries to come are taken to be like those there.

        Where it may not be asked (None), all entries are taken to be like our last one.
        """
        self._writes = self._written_bytes = 0
        if size_bytes is None:
            size_bytes = self._entry_bytes * length
        is_near = 2 * size_bytes > self._bytes_max
        self.len_max = max(1, length * self._bytes_max // size_bytes) if is_near else 0
