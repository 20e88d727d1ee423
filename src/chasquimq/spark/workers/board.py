"""The notes that all processes of a run share: what each task did, and whether to stop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from chasquimq.store.net.blocking import BlockingConnection
from chasquimq.wire.keys import QueueKeys

if TYPE_CHECKING:
    from chasquimq.settings import ConnectionSettings

# A run whose driver and tasks are gone is forgotten so soon; with it goes its flag.
RUN_TTL_S: Final = 120
RUNS_TTL_S: Final = 86_400
_STOP: Final = "stop"


class Record(msgspec.Struct, kw_only=True):
    """What one attempt of a task has done so far."""

    partition: int
    attempt: int
    consumer: str = ""
    group: str = ""
    # Moves with every note, so that a silent task is distinguished from an idle one without a clock.
    beat: int = 0
    has_ended: bool = False
    # Why it ended, where it was not asked to.
    error: str = ""
    completed: int = 0
    failed: int = 0
    retried: int = 0
    buried: int = 0
    handed_back: int = 0
    leases_lost: int = 0
    running: int = 0
    cpu_s: float = 0.0


class Board:
    """One run's notes, under the hash tag of its queue; used by one thread at a time.

    The flag that stops a run is a field of the run's own notes: a flag of an earlier run, which
    had another id, stops no run.
    """

    def __init__(self, queue: str, connection: ConnectionSettings, run: str) -> None:
        keys = QueueKeys(queue)
        self.run = run
        self._stream = keys.stream
        self._notes = keys.token(f"spark:{run}")
        self._runs = keys.token("spark:runs")
        self._connection = BlockingConnection(connection, name="chasqui-spark")

    def open(self) -> None:
        """Make the run known to the command that stops it, and keep it so."""
        self._connection.call("SADD", self._runs, self.run)
        self._connection.call("EXPIRE", self._runs, RUNS_TTL_S)
        self._keep("driver", "1")

    def note(self, record: Record) -> bool:
        """Write what a task has done; True: it is to stop."""
        self._keep(f"task:{record.partition}:{record.attempt}", msgspec.json.encode(record))
        return self.must_stop()

    def must_stop(self) -> bool:
        return self._connection.call("HGET", self._notes, _STOP) is not None

    def stop(self) -> None:
        """Ask every task to stop."""
        self._keep(_STOP, "1")

    def records(self) -> list[Record]:
        """The last note of every attempt."""
        values: list[bytes] = self._connection.call("HVALS", self._notes)
        # The other notes are plain numbers.
        return [msgspec.json.decode(one, type=Record) for one in values if one.startswith(b"{")]

    def forget(self, record: Record) -> None:
        """Drop the note of an attempt that is over."""
        name = f"task:{record.partition}:{record.attempt}"
        self._connection.call("HDEL", self._notes, name)

    def reap(self, record: Record) -> None:
        """Remove the consumer of an attempt that died; one that still holds jobs stays."""
        if record.group:
            args = (record.group, record.consumer, 0)
            self._connection.run("reap_consumer", [self._stream], *args)

    def clear(self) -> None:
        """The run is over."""
        self._connection.call("DEL", self._notes)
        self._connection.call("SREM", self._runs, self.run)

    def ping(self) -> None:
        self._connection.call("PING")

    def close(self) -> None:
        self._connection.close()

    def _keep(self, name: str, value: str | bytes) -> None:
        self._connection.call("HSET", self._notes, name, value)
        self._connection.call("EXPIRE", self._notes, RUN_TTL_S)


def stop_runs(queue: str, connection: ConnectionSettings) -> list[str]:
    """Ask every run of a queue to stop; the answer names those that live."""
    keys, asking = QueueKeys(queue), BlockingConnection(connection, name="chasqui-spark")
    try:
        runs = sorted(one.decode() for one in asking.call("SMEMBERS", keys.token("spark:runs")))
        living = [one for one in runs if asking.call("EXISTS", keys.token(f"spark:{one}"))]
    finally:
        asking.close()
    for run in living:
        board = Board(queue, connection, run)
        board.stop()
        board.close()
    return living
