"""Writes histories and events as workers would, and trims them as time would."""

from __future__ import annotations

from chasquimq.settings import ConnectionSettings
from chasquimq.store.net.blocking import BlockingConnection
from chasquimq.store.net.connection import pack
from chasquimq.wire.keys import QueueKeys
from support.attempts import entry


class Feed:
    """The writing end of one queue; ids are of the server unless a test gives them."""

    def __init__(self, url: str, queue: str) -> None:
        self.url = url
        self.queue = queue
        self.keys = QueueKeys(queue)
        self._connection = BlockingConnection(ConnectionSettings(url=url))
        self._seq = 0

    def call(self, *parts):
        return self._connection.call(*parts)

    def attempts(self, *row_counts: int, **options) -> list[str]:
        """One entry of the history for each number of rows; answers their ids."""
        entries = []
        for count in row_counts:
            entries.append(entry(count, seq=self._seq, **options))
            self._seq += 1
        return self._add(self.keys.history, entries)

    def events(self, count: int, kind: str = "active") -> list[str]:
        """So many events with jobs of their own; answers the ids of their entries."""
        numbers = range(self._seq, self._seq + count)
        self._seq += count
        return self._add(
            self.keys.events, [["e", kind, "id", f"job-{at}", "ts", "5"] for at in numbers]
        )

    def burst(self, count: int) -> None:
        """So many events within one millisecond."""
        request = [
            pack(("XADD", self.keys.events, f"5-{at}", "e", "active")) for at in range(count)
        ]
        self._connection.send(b"".join(request), count)

    def foreign(self, key: str, *fields: str | bytes) -> str:
        """An entry of another program."""
        return self._add(key, [list(fields)])[0]

    def trim(self, key: str, keep: int) -> None:
        self.call("XTRIM", key, "MAXLEN", "=", keep)

    def delete(self, key: str) -> None:
        self.call("DEL", key)

    def close(self) -> None:
        self._connection.close()

    def _add(self, key: str, entries: list[list]) -> list[str]:
        request = b"".join(pack(("XADD", key, "*", *fields)) for fields in entries)
        return [entry_id.decode() for entry_id in self._connection.send(request, len(entries))]
