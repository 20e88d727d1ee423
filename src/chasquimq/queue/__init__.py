"""Queue: add jobs, look at what became of them, and put right what went wrong."""

from __future__ import annotations

from chasquimq.model.options import BackoffLike
from chasquimq.queue.adding import Adding, DelayLike, DelayMsLike, OnConflict
from chasquimq.queue.cancelling import Cancelling
from chasquimq.queue.dead_letters import DeadLetters
from chasquimq.queue.finding import Finding
from chasquimq.queue.repeating import MissedFiresLike, Repeating, RepeatLike
from chasquimq.queue.resulting import Resulting
from chasquimq.settings import CredentialProvider
from chasquimq.store.dead_letters import Imported
from chasquimq.store.draining import Cancelled, Drained

__all__ = [
    "BackoffLike",
    "Cancelled",
    "CredentialProvider",
    "DelayLike",
    "DelayMsLike",
    "Drained",
    "Imported",
    "MissedFiresLike",
    "OnConflict",
    "Queue",
    "RepeatLike",
]


class Queue(Adding, Repeating, Cancelling, Resulting, DeadLetters, Finding):
    """One queue, from the outside; connects when first used.

    Every method may be called from many tasks at once. After `close()` every call is refused.
    """
