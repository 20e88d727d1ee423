"""Losses as a reader tells them: an error that stops the query, or a row and on it goes."""

from __future__ import annotations

from typing import Final

from chasquimq.errors import EntriesLost

# What happened to the entries: removed to keep the stream short, or gone with the whole stream.
TRIMMED: Final = "trimmed"
RESET: Final = "reset"

_CAUSES = {
    TRIMMED: "trimmed before they were read",
    RESET: "lost when the stream was deleted, re-created or rolled back",
}


def loss_sentence(label: str, lost: int | None) -> str:
    """What is missing and why, in words."""
    number = "entries, nobody knows how many," if lost is None else f"{lost} entries"
    return f"{number} were {_CAUSES[label]}"


def entries_lost(
    queue: str, place: str, after_id: str, label: str, lost: int | None
) -> EntriesLost:
    """The error for a query that must not lose any."""
    return EntriesLost(
        f"every entry of the {place} of queue {queue!r} must be read, but after {after_id} "
        f"{loss_sentence(label, lost)}; read more often or keep more, "
        "or set failOnDataLoss=false (chasqui pipeline: leave --fail-on-data-loss out) to go on "
        "and have the loss written down",
        queue=queue,
        lost=lost,
    )
