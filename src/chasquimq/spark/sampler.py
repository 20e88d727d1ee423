"""Asks the server how much waits where; looks, and moves nothing."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

from chasquimq.errors import StoreError
from chasquimq.model.forecast import Sample
from chasquimq.settings import LeaseSettings
from chasquimq.spark.ledger import id_ms
from chasquimq.store.connection import pack
from chasquimq.store.consuming import PARKING
from chasquimq.store.inspecting import is_missing, pairs, read_snapshot, snapshot_questions
from chasquimq.store.scattered import blocking_connection
from chasquimq.wire.keys import QueueKeys
from chasquimq.wire.stream_entry import read_text

if TYPE_CHECKING:
    from chasquimq.settings import ConnectionSettings
    from chasquimq.store.connection import Part, Reply

_GROUP: Final = "default"
_LEASE_MS: Final = LeaseSettings().lease_ms
_QUEUES_PER_CALL: Final = 50


class ServerSampler:
    """Takes samples of queues over a connection of its own."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self._connection = blocking_connection(settings, name="chasqui-sampler")

    def sample(self, queues: Sequence[str]) -> list[Sample]:
        """All queues, in few round trips."""
        samples: list[Sample] = []
        for at in range(0, len(queues), _QUEUES_PER_CALL):
            samples += self._ask(queues[at : at + _QUEUES_PER_CALL])
        return samples

    def alive_workers(self, queues: Sequence[str]) -> set[tuple[str, str]]:
        """Queues and names of all workers that the server has heard of within their lease."""
        names: set[tuple[str, str]] = set()
        for queue in queues:
            asked = pack(("XINFO", "CONSUMERS", QueueKeys(queue).stream, _GROUP))
            names.update((queue, name) for name in _alive(self._connection.send(asked)[0]))
        return names

    def close(self) -> None:
        self._connection.close()

    def _ask(self, queues: Sequence[str]) -> list[Sample]:
        questions = [_questions(QueueKeys(queue)) for queue in queues]
        request = b"".join(pack(one) for asked in questions for one in asked)
        replies = iter(self._connection.send(request, sum(map(len, questions))))
        return [
            _sample(queue, list(islice(replies, len(asked))))
            for queue, asked in zip(queues, questions, strict=True)
        ]


def _questions(keys: QueueKeys) -> list[tuple[Part, ...]]:
    return [
        *snapshot_questions(keys, _GROUP),
        ("XINFO", "CONSUMERS", keys.stream, _GROUP),
        ("XRANGE", keys.stream, "-", "+", "COUNT", 1),
    ]


def _sample(queue: str, replies: Sequence[Reply]) -> Sample:
    *about, consumers, oldest = replies
    snapshot = read_snapshot(queue, _GROUP, about)
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
        consumers=len(_alive(consumers)),
    )


def _age_ms(entries: Reply, now_ms: int) -> int | None:
    if isinstance(entries, StoreError):
        raise entries
    return max(0, now_ms - id_ms(entries[0][0].decode())) if entries else None


def _alive(reply: Reply) -> list[str]:
    if is_missing(reply):
        return []
    if isinstance(reply, StoreError):
        raise reply
    rows = [pairs(row) for row in reply]
    names = [read_text(row[b"name"]) for row in rows if row[b"idle"] <= _LEASE_MS]
    return [name for name in names if name != PARKING]
