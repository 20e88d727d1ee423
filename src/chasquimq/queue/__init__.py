"""Adds jobs, looks at what became of them, and puts right what went wrong."""

from __future__ import annotations

from chasquimq.model.job_options import BackoffLike
from chasquimq.queue.queue import DelayLike, DelayMsLike, OnConflict, Queue
from chasquimq.queue.repeatables import MissedFiresLike, RepeatLike
from chasquimq.settings import CredentialProvider
from chasquimq.store.dlq import Imported
from chasquimq.store.drain import Cancelled, Drained

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
