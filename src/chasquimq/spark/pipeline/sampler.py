"""Asks the server how much waits where; looks, and moves nothing."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

from chasquimq.errors import StoreError
from chasquimq.model.chunks import in_chunks
from chasquimq.model.forecast import Sample
from chasquimq.settings import LeaseSettings
from chasquimq.spark.lake.ledger import id_ms
from chasquimq.store.consumer.store import PARKING
from chasquimq.store.inspect.queue import is_missing, pairs, read_snapshot, snapshot_questions
from chasquimq.store.net.cluster import blocking_connection
from chasquimq.store.net.connection import pack
from chasquimq.wire.keys import QueueKeys
from chasquimq.wire.stream_entry import read_text

if TYPE_CHECKING:
    from chasquimq.settings import ConnectionSettings
    from chasquimq.store.net.connection import Part, Reply

# The group of a queue that has none yet, or this one among others.
_GROUP: Final = "default"
# A worker that holds nothing reads, and so is seen often.
_READING_MS: Final = LeaseSettings().lease_ms
# A worker that is full only renews its lease, three times a lease; leases of ten minutes are the limit.
_HOLDING_MS: Final = 200_000
_QUEUES_PER_CALL: Final = 50

# Questions about a queue.
Questions = list[tuple["Part", ...]]


class ServerSampler:
    """Takes samples of queues over a connection of its own."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self._connection = blocking_connection(settings, name="chasqui-sampler")

    def sample(self, queues: Sequence[str]) -> list[Sample]:
        """All queues, in few round trips."""
        samples: list[Sample] = []
        for some in in_chunks(queues, _QUEUES_PER_CALL):
            samples += self._sample(some)
        return samples

    def alive_workers(self, queues: Sequence[str]) -> set[tuple[str, str]]:
        """Queues and names of all workers that were seen, whatever group they are in."""
        names: set[tuple[str, str]] = set()
        for some in in_chunks(queues, _QUEUES_PER_CALL):
            groups = self._groups(some)
            asked = [_about_consumers(QueueKeys(queue), groups[queue]) for queue in some]
            for queue, replies in zip(some, self._ask(asked), strict=True):
                names.update((queue, name) for reply in replies for name in alive_names(reply))
        return names

    def close(self) -> None:
        self._connection.close()

    def _sample(self, queues: Sequence[str]) -> list[Sample]:
        groups = self._groups(queues)
        asked = [_questions(QueueKeys(queue), groups[queue]) for queue in queues]
        return [
            _sample(queue, groups[queue], replies)
            for queue, replies in zip(queues, self._ask(asked), strict=True)
        ]

    def _groups(self, queues: Sequence[str]) -> dict[str, list[str]]:
        """The groups of each queue, the usual one first."""
        asked: list[Questions] = [
            [("XINFO", "GROUPS", QueueKeys(queue).stream)] for queue in queues
        ]
        return {
            queue: _group_names(reply)
            for queue, (reply,) in zip(queues, self._ask(asked), strict=True)
        }

    def _ask(self, questions: Sequence[Questions]) -> list[list[Reply]]:
        """The replies to all questions, in one round trip."""
        request = b"".join(pack(one) for asked in questions for one in asked)
        replies = iter(self._connection.send(request, sum(map(len, questions))))
        return [list(islice(replies, len(asked))) for asked in questions]


def alive_names(reply: Reply) -> list[str]:
    """The workers among the consumers of a group that were seen not too long ago."""
    if is_missing(reply):
        return []
    if isinstance(reply, StoreError):
        raise reply
    rows = [pairs(row) for row in reply]
    names = [read_text(row[b"name"]) for row in rows if _is_alive(row)]
    return [name for name in names if name != PARKING]


def _is_alive(row: dict[bytes, Reply]) -> bool:
    return row[b"idle"] <= (_HOLDING_MS if row[b"pending"] else _READING_MS)


def _group_names(reply: Reply) -> list[str]:
    if is_missing(reply):
        return [_GROUP]
    if isinstance(reply, StoreError):
        raise reply
    names = [read_text(pairs(row)[b"name"]) for row in reply]
    return sorted(names, key=lambda name: (name != _GROUP, name)) or [_GROUP]


def _questions(keys: QueueKeys, groups: Sequence[str]) -> Questions:
    return [
        *snapshot_questions(keys, groups[0]),
        ("XRANGE", keys.stream, "-", "+", "COUNT", 1),
        *_about_consumers(keys, groups),
    ]


def _about_consumers(keys: QueueKeys, groups: Sequence[str]) -> Questions:
    return [("XINFO", "CONSUMERS", keys.stream, group) for group in groups]


def _sample(queue: str, groups: Sequence[str], replies: Sequence[Reply]) -> Sample:
    *about, oldest = replies[: -len(groups)]
    snapshot = read_snapshot(queue, groups[0], about)
    return Sample(
        queue=queue,
        at_ms=snapshot.at_ms,
        ready=snapshot.ready,
        # Whatever is in the stream and not ready runs; the two make up its length.
        running=snapshot.stream_depth - snapshot.ready,
        delayed=snapshot.delayed_depth,
        dlq=snapshot.dlq_depth,
        added=snapshot.added_total,
        left=snapshot.left_total,
        oldest_ms=_age_ms(oldest, snapshot.at_ms),
        consumers=len({name for reply in replies[-len(groups) :] for name in alive_names(reply)}),
    )


def _age_ms(entries: Reply, now_ms: int) -> int | None:
    if isinstance(entries, StoreError):
        raise entries
    return max(0, now_ms - id_ms(entries[0][0].decode())) if entries else None
