"""Renews leases, and the record of the worker, over a blocking connection of their own."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from chasquimq.errors import ServerRefused, StoreError
from chasquimq.model.chunks import in_chunks
from chasquimq.model.log import get_logger
from chasquimq.store.net.blocking import BlockingConnection
from chasquimq.store.net.connection import pack
from chasquimq.store.net.script import is_forgotten, script
from chasquimq.wire.keys import Lanes, QueueKeys
from chasquimq.wire.outcome import encode_worker_record

if TYPE_CHECKING:
    from chasquimq.model.snapshot import WorkerRecord
    from chasquimq.settings import ConnectionSettings
    from chasquimq.store.net.connection import Part, Reply
    from chasquimq.wire.keys import Lane

logger = get_logger(__name__)
_IDS_PER_CALL_MAX = 500
_PENDING_MAX = 10_000


class LeaseStore:
    """Blocking on purpose: a busy event loop must not stop renewals."""

    def __init__(
        self,
        queue: str,
        group: str,
        consumer: str,
        connection: ConnectionSettings,
        timeout_ms: int,
        record: Callable[[], WorkerRecord] | None = None,
        record_ms: int = 0,
        lanes: Sequence[Lane] = (),
    ) -> None:
        """`record` is what the worker says of itself, every `record_ms`; asked for when it is sent."""
        keys = QueueKeys(queue)
        self._head = (group, consumer)
        self._lanes = Lanes(keys, lanes)
        self._record = record and _PublishedRecord(keys, consumer, record, record_ms)
        # A renewal that takes longer than the pause between two is of no use.
        hasty = replace(
            connection,
            connect_timeout_ms=min(timeout_ms, connection.connect_timeout_ms),
            command_timeout_ms=min(timeout_ms, connection.command_timeout_ms),
        )
        self._connection = BlockingConnection(hasty, name="chasqui-lease")

    def pending(self) -> list[bytes]:
        """The keys of whatever the server thinks this consumer holds."""
        group, consumer = self._head
        held: list[bytes] = []
        for lane in self._lanes:
            rows = self._connection.call(
                "XPENDING", lane.stream, group, "-", "+", _PENDING_MAX, consumer
            )
            held += [lane.key(row[0]) for row in rows]
        return held

    def renew(self, keys: Collection[bytes]) -> list[bytes]:
        """Renew what is still ours, and the worker's record; answers the keys that are not ours."""
        lost: list[bytes] = []
        for lane, entry_ids in self._lanes.ids(keys):
            for chunk in in_chunks(sorted(entry_ids, key=_id_order), _IDS_PER_CALL_MAX):
                lost += map(lane.key, self._renew(lane, chunk))
        self.publish()
        return lost

    def publish(self) -> None:
        """Send the record where it is due and did not go along with a renewal of leases."""
        record = self._record
        if record is None:
            return
        try:
            while record.is_due and (renewal := record.renewal()):
                record.note(*self._connection.send(renewal))
        except StoreError as error:
            # No lease depends on it.
            record.note(None)
            logger.debug("the record of the worker was not renewed: %s", error)

    def retire(self) -> None:
        """Publish the record no more; the worker is leaving."""
        self._record = None

    def close(self) -> None:
        self._connection.close()

    def _renew(self, lane: Lane, entry_ids: Sequence[bytes]) -> list[bytes]:
        """One call of the script; a record that is due goes along in the same write."""
        keys, args = [lane.stream], (*self._head, *entry_ids)
        record = self._record
        renewal = record.renewal() if record is not None and record.is_due else b""
        if record is None or not renewal:
            return self._connection.run("renew", keys, *args)
        act = script("renew")
        request = renewal + act.by_hash(keys, args)
        published, renewed = self._connection.send(request, 2)
        record.note(published)
        if is_forgotten(renewed):
            return self._connection.run("renew", keys, *args)
        if isinstance(renewed, StoreError):
            raise renewed
        return renewed


class _PublishedRecord:
    """What a worker says of itself, as it stands on the server.

    It is set once and then kept alive, which also a server without memory does. Nothing depends on
    it: a worker that may not write it works on.
    """

    def __init__(
        self, keys: QueueKeys, consumer: str, record: Callable[[], WorkerRecord], pause_ms: int
    ) -> None:
        self._consumer = consumer
        self._key = keys.worker(consumer)
        self._record = record
        # A beat that comes a little early must not wait for the next one.
        self._pause_s = 0.9 * pause_ms / 1000
        self._due_s = 0.0
        self._command: tuple[Part, ...] = ()
        self._ttl_ms = 0
        self._is_there = False
        self._has_warned = False

    @property
    def is_due(self) -> bool:
        return time.monotonic() >= self._due_s

    def renewal(self) -> bytes:
        """The command that keeps the record alive, or makes it; empty where it cannot be made."""
        if self._is_there:
            return pack(("PEXPIRE", self._key, self._ttl_ms))
        try:
            self._command = self._command or self._new_command()
        except Exception:  # leases must be renewed whatever a record is made of
            logger.exception("worker %s works without its record", self._consumer)
            self._due_s = float("inf")
            return b""
        return pack(self._command)

    def _new_command(self) -> tuple[Part, ...]:
        record = self._record()
        self._ttl_ms = record.ttl_ms
        return ("SET", self._key, encode_worker_record(record), "PX", record.ttl_ms)

    def note(self, reply: Reply) -> None:
        """Note what the server answered."""
        was_there, self._is_there = self._is_there, reply in (1, b"OK")
        # It was deleted, or it ran out while the server was away: it is made again at once.
        is_gone = was_there and reply == 0
        self._due_s = 0.0 if is_gone else time.monotonic() + self._pause_s
        if isinstance(reply, ServerRefused) and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "worker %s works without its record: %s; others see of it only when it last asked "
                "for jobs, not its lease, version and handlers",
                self._consumer, reply,
            )  # fmt: skip


def _id_order(entry_id: bytes) -> tuple[int, int]:
    ms, _, seq = entry_id.partition(b"-")
    return int(ms), int(seq)
