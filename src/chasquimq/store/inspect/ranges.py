"""Reads ranges of streams over blocking connections: what there is, how much, and the entries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import msgspec

from chasquimq.errors import ConnectionLost, ServerRefused, SettingsError, StoreError
from chasquimq.model.chunks import in_chunks
from chasquimq.store.inspect.pages import PageSize, RawMember, ScoreWalk
from chasquimq.store.inspect.queue import escaped
from chasquimq.store.net.blocking import ask_patiently
from chasquimq.store.net.cluster import blocking_connection
from chasquimq.store.net.connection import pack
from chasquimq.store.net.errors import is_worth_asking_again
from chasquimq.wire.keys import QueueKeys
from chasquimq.wire.stream_entry import first_values, read_uint

if TYPE_CHECKING:
    from chasquimq.settings import ConnectionSettings
    from chasquimq.store.net.connection import Part, Reply

# An entry as the server sends it: its id, and fields and values in turn.
RawEntry = tuple[bytes, Sequence[bytes]]
Answer = TypeVar("Answer")

NO_ENTRY = "0-0"
_KEYS_PER_STEP = 1_000
# A reply holds two whole entries, so those of a few streams fill a buffer.
_STREAMS_PER_CALL = 32
# A larger number was not written by a worker.
_ROWS_PER_ENTRY_MAX = 999_999_999
# A failover takes a few seconds; a caller that was connected before may wait for it.
_PATIENCE_S = 15.0
_PAUSE_S = 0.5


class StreamFacts(msgspec.Struct, frozen=True):
    """What a stream says about itself; an absent stream is an empty one.

    `added` counts every entry there ever was; None: the server (6.2) does not count.
    """

    length: int = 0
    first_id: str = NO_ENTRY
    last_id: str = NO_ENTRY
    added: int | None = 0


class Stretch(msgspec.Struct, frozen=True):
    """Entries in a row: the last of them, how many they are, and how many rows they hold."""

    last_id: str
    entry_count: int
    row_count: int


class RangeStore:
    """Asks and reads, moves nothing, so every call may be sent again after an error."""

    def __init__(self, settings: ConnectionSettings, *, name: str = "") -> None:
        self._connection = blocking_connection(settings, name=name)
        self._was_connected = False
        self._may_script = True

    def facts(self, keys: Sequence[str]) -> list[StreamFacts]:
        """Length, edges and counter of each stream, asked in few round trips."""
        facts: list[StreamFacts] = []
        for some in in_chunks(keys, _STREAMS_PER_CALL):
            asked = [pack(("XINFO", "STREAM", key)) for key in some]
            facts += self._patiently(partial(self._ask_facts, b"".join(asked), len(asked)))
        return facts

    def has(self, key: str, entry_id: str) -> bool:
        """Whether the entry is still there."""
        return bool(self._call("XRANGE", key, entry_id, entry_id))

    def entries(self, key: str, after_id: str, until_id: str, count: int) -> list[RawEntry]:
        """The next entries after one id up to another."""
        return self._call("XRANGE", key, f"({after_id}", until_id, "COUNT", count)

    def newest(self, key: str, until_id: str, count: int) -> list[RawEntry]:
        """The last entries up to an id, the newest first."""
        return self._call("XREVRANGE", key, until_id, "-", "COUNT", count)

    def measure(
        self, key: str, after_id: str, until_id: str, count: int, rows_max: int, rows_field: str
    ) -> Stretch | None:
        """How far `count` entries or `rows_max` rows reach; None: nothing is left."""
        if self._may_script:
            try:
                return self._by_script(key, after_id, until_id, count, rows_max, rows_field)
            except ServerRefused as refusal:
                if refusal.code != "NOPERM":
                    raise
                # A user that may only read sees the entries, and counts them here.
                self._may_script = False
        return _measured(self.entries(key, after_id, until_id, count), rows_max, rows_field)

    def queues(self, pattern: str, place: str) -> list[str]:
        """Queues with a stream at that place whose names match the glob pattern; sorted."""
        names: set[str] = set()
        cursor: Reply = b"0"
        while True:
            command = ("SCAN", cursor, "MATCH", "{chasqui:" + pattern + "}:" + place)
            cursor, keys = self._call(*command, "COUNT", _KEYS_PER_STEP, "TYPE", "stream")
            names.update(name for name in map(_queue_name, keys) if name)
            if cursor == b"0":
                return sorted(names)

    def close(self) -> None:
        """Close; a later call dials again."""
        self._connection.close()

    def _ask_facts(self, request: bytes, count: int) -> list[StreamFacts]:
        return [_facts(reply) for reply in self._connection.send(request, count)]

    def _by_script(self, key: str, *args: Part) -> Stretch | None:
        reply = self._patiently(partial(self._connection.run, "measure", [key], *args))
        return Stretch(reply[0].decode(), reply[1], reply[2]) if reply else None

    def _call(self, *parts: Part) -> Reply:
        return self._patiently(partial(self._connection.call, *parts))

    def _patiently(self, ask: Callable[[], Answer]) -> Answer:
        """Ask again for a while if the server was there before; a wrong URL is raised at once."""
        within_s = _PATIENCE_S if self._was_connected else 0
        answer = ask_patiently(ask, _may_pass, within_s=within_s, pause_s=_PAUSE_S)
        self._was_connected = True
        return answer


def _may_pass(error: StoreError) -> bool:
    return isinstance(error, ConnectionLost) or is_worth_asking_again(error)


def _facts(reply: Reply) -> StreamFacts:
    if isinstance(reply, StoreError):
        if "no such key" in str(reply):
            return StreamFacts()
        raise reply
    fields: dict[bytes, Reply] = dict(zip(reply[::2], reply[1::2], strict=True))
    length = fields[b"length"]
    first = fields[b"first-entry"]
    return StreamFacts(
        length,
        first[0].decode() if first else NO_ENTRY,
        fields[b"last-generated-id"].decode(),
        fields.get(b"entries-added"),
    )


def _measured(entries: list[RawEntry], rows_max: int, rows_field: str) -> Stretch | None:
    taken, row_count = 0, 0
    for _, fields in entries:
        more = _rows_of(fields, rows_field)
        if taken and row_count + more > rows_max:
            break
        taken, row_count = taken + 1, row_count + more
    return Stretch(entries[taken - 1][0].decode(), taken, row_count) if taken else None


def _rows_of(fields: Sequence[bytes], rows_field: str) -> int:
    if not rows_field:
        return 1
    number = read_uint(first_values(fields).get(rows_field.encode())) or 1
    return number if number <= _ROWS_PER_ENTRY_MAX else 1


def _queue_name(key: bytes) -> str | None:
    try:
        name = key.decode().partition(":")[2].rpartition("}")[0]
        return QueueKeys(name).queue
    except (SettingsError, UnicodeDecodeError):
        # Another program's key: nothing of ours can be under such a name.
        return None


_CLIENT_NAME = "chasqui-spark"
_FIRST_PAGE = 100
# The server copies what it measures; so much of it keeps no client waiting.
_MEASURED_BYTES = 1024 * 1024
_MEASURED_MAX = 1_000
_UNLIMITED = 2**53
_FIRST_RESULTS = 64
_WALK_PAGE_MIN = 2
LOWEST, HIGHEST = "-inf", "+inf"


class KeptResult(msgspec.Struct, frozen=True):
    """What is kept of one finished job; `ttl_ms` is negative where nothing will remove it."""

    job_id: str
    outcome: bytes | None
    result: bytes | None
    ttl_ms: int


class QueueReadStore(RangeStore):
    """One queue; nothing moves."""

    def __init__(self, queue: str, settings: ConnectionSettings) -> None:
        super().__init__(settings, name=_CLIENT_NAME)
        self.keys = QueueKeys(queue)

    def stretches(self, key: str, count_wanted: int) -> list[Stretch]:
        """A stream up to its last entry now, in about so many parts with as many entries each."""
        (facts,) = self.facts([key])
        step = min(self._measured_max(key, facts.length), max(1, facts.length // count_wanted))
        found: list[Stretch] = []
        after_id = "0-0"
        while facts.length and after_id != facts.last_id:
            part = self.measure(key, after_id, facts.last_id, step, _UNLIMITED, "")
            if part is None:
                break
            found.append(part)
            after_id = part.last_id
        return found

    def pages(
        self, key: str, after_id: str, until_id: str, count_max: int
    ) -> Iterator[list[RawEntry]]:
        """The entries after one id up to another, about a mebibyte at a time."""
        size = PageSize(_FIRST_PAGE, count_max)
        while after_id != until_id:
            page = self.entries(key, after_id, until_id, size.count)
            if not page:
                return
            yield page
            after_id = page[-1][0].decode()
            size.learn(sum(len(part) for _, fields in page for part in fields))

    def score_edges(self, count_wanted: int) -> list[str]:
        """Scores that cut the delayed set into about so many parts of the same size."""
        key = self.keys.delayed
        total = self._call("ZCARD", key)
        ranks = sorted({total * at // count_wanted for at in range(1, count_wanted)} - {0})
        asked = [pack(("ZRANGE", key, rank, rank, "WITHSCORES")) for rank in ranks if rank < total]
        if not asked:
            return []
        replies = self._ask(asked)
        scores = [float(reply[1]) for reply in replies if reply]
        return [f"{score:.17g}" for score in sorted(set(scores))]

    def delayed(self, low: str, high: str, count_max: int) -> Iterator[list[RawMember]]:
        """The members whose scores lie between, each once, though others come and go meanwhile."""
        walk = ScoreWalk(low)
        size = PageSize(_FIRST_PAGE, count_max)
        while True:
            # Pages overlap by half, so one of a single member would get nowhere.
            count = max(_WALK_PAGE_MIN, size.count)
            bounds = (walk.low, high, "WITHSCORES", "LIMIT", walk.offset(count), count)
            flat = self._call("ZRANGEBYSCORE", self.keys.delayed, *bounds)
            page = list(zip(flat[::2], flat[1::2], strict=True))
            yield walk.fresh(page)
            if len(page) < count and not walk.must_go_back:
                return
            size.learn(sum(map(len, flat)))

    def results(self) -> Iterator[list[KeptResult]]:
        """What finished jobs left, by a walk over all keys of the server."""
        seen: set[int] = set()
        size = PageSize(_FIRST_RESULTS, _KEYS_PER_STEP)
        for ids in self._finished_ids():
            fresh = [one for one in dict.fromkeys(ids) if hash(one) not in seen]
            seen.update(map(hash, fresh))
            while fresh:
                some, fresh = fresh[: size.count], fresh[size.count :]
                page = self._kept(some)
                size.learn(sum(len(one.result or b"") for one in page))
                yield [one for one in page if one.outcome is not None or one.result is not None]

    def _measured_max(self, key: str, length: int) -> int:
        try:
            total_bytes = self._call("MEMORY", "USAGE", key) or 0
        except ServerRefused:
            # A user that may not ask is careful.
            return _FIRST_PAGE
        mean_bytes = max(1, total_bytes // max(1, length))
        return max(1, min(_MEASURED_MAX, _MEASURED_BYTES // mean_bytes))

    def _finished_ids(self) -> Iterator[list[str]]:
        outcome, result = self.keys.outcome(""), self.keys.result("")
        # Both begin alike but for one letter.
        pattern = escaped(outcome.removesuffix("outcome:")) + "[or]*"
        cursor: Reply = b"0"
        while True:
            step = ("SCAN", cursor, "MATCH", pattern, "COUNT", _KEYS_PER_STEP)
            cursor, keys = self._call(*step)
            names = [key.decode(errors="replace") for key in keys]
            yield [
                _without_prefix(name, outcome, result)
                for name in names
                if _without_prefix(name, outcome, result)
            ]
            if cursor == b"0":
                return

    def _kept(self, job_ids: Sequence[str]) -> list[KeptResult]:
        named = (
            [self.keys.outcome(one) for one in job_ids],
            [self.keys.result(one) for one in job_ids],
        )
        asked = [pack(("MGET", *keys)) for keys in named]
        asked += [pack(("PTTL", key)) for key in named[1]]
        replies = self._ask(asked)
        outcomes, results, *ttls = replies
        return list(map(KeptResult, job_ids, outcomes, results, ttls))

    def _ask(self, asked: Sequence[bytes]) -> list[Reply]:
        return self._patiently(partial(self._connection.ask, b"".join(asked), len(asked)))


def _without_prefix(name: str, *heads: str) -> str:
    return next((name.removeprefix(head) for head in heads if name.startswith(head)), "")
