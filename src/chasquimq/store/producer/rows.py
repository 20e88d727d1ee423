"""Writes rows as jobs: many in one script call that adds each once, however often it is sent."""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, count, repeat
from typing import TYPE_CHECKING, TypeVar

import hiredis

from chasquimq.errors import ConnectionLost, QueueFull, ServerOutOfMemory, StoreError
from chasquimq.model.chunks import slices
from chasquimq.model.retry import doubled_ms
from chasquimq.store.net.abilities import has_many_set, many_set_question
from chasquimq.store.net.blocking import BlockingConnection, ask_patiently
from chasquimq.store.net.connection import pack
from chasquimq.store.net.errors import is_worth_resending
from chasquimq.store.net.script import is_forgotten, script
from chasquimq.store.producer.writes import TOKEN_TTL_S
from chasquimq.wire.keys import QueueKeys

if TYPE_CHECKING:
    from chasquimq.settings import ConnectionSettings
    from chasquimq.store.net.connection import Part, Reply

ROWS_PER_WRITE_MAX = 1_000
# Measured: in writes of a thousand each costs the server some 15 % more, and others wait longer.
OWN_ID_ROWS_PER_WRITE_MAX = 250
# In writes of a thousand the server does nothing else for some 10 ms.
LATER_ROWS_PER_WRITE_MAX = 250
# A hash of so many parts is deleted without keeping others waiting, even after ten million rows.
RUN_BUCKETS = 64


@dataclass(frozen=True, slots=True)
class Jobs:
    """Jobs by column; `waits_ms` is None where every job is ready now."""

    ids: Sequence[str]
    names: Sequence[str]
    envelopes: Sequence[bytes]
    waits_ms: Sequence[int] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def envelope_bytes(self) -> int:
        return sum(map(len, self.envelopes))

    def part(self, places: slice) -> Jobs:
        """The jobs of these places."""
        waits_ms = None if self.waits_ms is None else self.waits_ms[places]
        return Jobs(self.ids[places], self.names[places], self.envelopes[places], waits_ms)


@dataclass(frozen=True, slots=True)
class RowOwner:
    """The writer of rows of a run: attempts of one partition stand for each other."""

    run: str
    instance: str
    partition: int
    attempt: int


class RowWrite:
    """A write that can be sent again."""

    def __init__(
        self, script_name: str, jobs: Jobs, keys: Sequence[str], args: Sequence[Part]
    ) -> None:
        self.script_name = script_name
        self.jobs = jobs
        self._script = script(script_name)
        self._keys = keys
        self._args = args

    def request(self) -> bytes:
        return self._script.by_hash(self._keys, self._args)

    def request_with_text(self) -> bytes:
        return self._script.by_text(self._keys, self._args)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnIdTerms:
    """What holds for all rows with ids of their own; `has_many_set`: the server has MSETEX."""

    stream_len_max: int
    unique_ms: int
    has_leftovers: bool
    has_many_set: bool


def own_id_writes(
    jobs: Jobs, digests: Sequence[str], keys: QueueKeys, terms: OwnIdTerms
) -> Iterator[RowWrite]:
    """Jobs that are ready now and have ids of their own, in writes that suit the server."""
    for places in slices(len(jobs), OWN_ID_ROWS_PER_WRITE_MAX):
        yield own_id_write(jobs.part(places), digests[places], keys, terms)


def own_id_write(
    jobs: Jobs, digests: Sequence[str], keys: QueueKeys, terms: OwnIdTerms
) -> RowWrite:
    """All of these jobs in one write."""
    named = [keys.stream, _new_token(keys), *_each(keys.uniq(""), jobs.ids)]
    if terms.has_leftovers:
        named += leftover_keys(keys, jobs.ids)
    # Set at once, an id that comes twice would be two jobs.
    is_at_once = terms.has_many_set and len(set(jobs.ids)) == len(jobs)
    names = jobs.names[:1] if len(set(jobs.names)) == 1 else jobs.names
    args = [terms.stream_len_max, TOKEN_TTL_S, terms.unique_ms, int(is_at_once), len(jobs)]
    return RowWrite("add_rows", jobs, named, [*args, *digests, *jobs.envelopes, *names])


def own_id_delay_writes(
    jobs: Jobs, digests: Sequence[str], keys: QueueKeys, *, unique_ms: int
) -> Iterator[RowWrite]:
    """Jobs that are not due yet and have ids of their own, in writes that suit the server."""
    for places in slices(len(jobs), OWN_ID_ROWS_PER_WRITE_MAX):
        yield _own_id_delay_write(jobs.part(places), digests[places], keys, unique_ms=unique_ms)


def _own_id_delay_write(
    jobs: Jobs, digests: Sequence[str], keys: QueueKeys, *, unique_ms: int
) -> RowWrite:
    assert jobs.waits_ms is not None, "jobs without waits go the immediate way"
    named = [keys.delayed, keys.dix, keys.stream, _new_token(keys)]
    for one in jobs.ids:
        named += (keys.uniq(one), keys.dlid(one), keys.didx(one))
    named += leftover_keys(keys, jobs.ids)
    rows = zip(
        jobs.envelopes, jobs.names, digests, jobs.ids, jobs.waits_ms, repeat("in", len(jobs)),
        strict=True,
    )  # fmt: skip
    args = [TOKEN_TTL_S, unique_ms]
    return RowWrite("schedule", jobs, named, [*args, *chain.from_iterable(rows), 0, keys.bell])


def run_writes(
    jobs: Jobs,
    digests: Sequence[bytes],
    keys: QueueKeys,
    owner: RowOwner,
    *,
    stream_len_max: int,
    keep_ms: int,
) -> Iterator[RowWrite]:
    """Jobs that are known by their contents, in writes that suit the server."""
    count_max = ROWS_PER_WRITE_MAX if jobs.waits_ms is None else LATER_ROWS_PER_WRITE_MAX
    for places in slices(len(jobs), count_max):
        yield run_write(
            jobs.part(places), digests[places], keys, owner,
            stream_len_max=stream_len_max, keep_ms=keep_ms,
        )  # fmt: skip


def run_write(
    jobs: Jobs,
    digests: Sequence[bytes],
    keys: QueueKeys,
    owner: RowOwner,
    *,
    stream_len_max: int,
    keep_ms: int,
) -> RowWrite:
    """All of these jobs in one write; they are known by their contents, within one run."""
    named = [keys.stream, _new_token(keys), keys.delayed, keys.dix, *bucket_keys(keys, owner.run)]
    writer = (owner.instance, owner.partition, owner.attempt)
    bell = 0 if jobs.waits_ms is None else keys.bell
    args = [stream_len_max, TOKEN_TTL_S, keep_ms, *writer, bell]
    columns: list[Sequence[Part]] = [jobs.envelopes, jobs.names, digests]
    if jobs.waits_ms is not None:
        columns.append(jobs.waits_ms)
    rows = zip(*columns, strict=True)
    return RowWrite("add_run_rows", jobs, named, [*args, *chain.from_iterable(rows)])


def leftover_keys(keys: QueueKeys, job_ids: Sequence[str]) -> list[str]:
    """Where former jobs of these ids may have left their ends: outcome and result of each."""
    pairs = zip(_each(keys.outcome(""), job_ids), _each(keys.result(""), job_ids), strict=True)
    return list(chain.from_iterable(pairs))


def bucket_keys(keys: QueueKeys, run: str) -> list[str]:
    """Where the rows of a run are noted."""
    return [keys.token(f"run:{run}:{number}") for number in range(RUN_BUCKETS)]


def read_marks(reply: Reply) -> bytes:
    """One character a row: 1 added, 0 was there, 2 taken by another job."""
    return reply if isinstance(reply, bytes) else bytes(48 + mark for mark in reply)


def _each(prefix: str, job_ids: Sequence[str]) -> map[str]:
    # A call of Python for each key would cost as much as all else that is done for a row.
    return map(prefix.__add__, job_ids)


def _new_token(keys: QueueKeys) -> str:
    return keys.token(secrets.token_hex(12))


Answer = TypeVar("Answer")
Marked = Callable[[RowWrite, bytes], None]
_CLIENT_NAME = "chasqui-spark-sink"
_ON_THE_WAY_MAX = 8
_FULL = b"full"
_PAUSE_MS_MIN, _PAUSE_MS_MAX = 20, 1_000
_REPORT_TTL_S = 3_600


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long an error may last before it is raised; a full queue may take longer than a cut."""

    resend_s: float = 30.0
    full_s: float = 600.0


class RowWriter:
    """The adding side of one queue; `on_marks` gets what became of each write, in any order."""

    def __init__(
        self,
        queue: str,
        connection: ConnectionSettings,
        on_marks: Marked,
        *,
        patience: Patience | None = None,
        stream_len_max: int = 0,
    ) -> None:
        self.keys = QueueKeys(queue)
        connection = replace(connection, queue=queue)
        self._connection = _Pipe(connection, name=_CLIENT_NAME)
        # Questions have a connection of their own: their answers do not wait behind writes.
        self._questions = BlockingConnection(connection, name=_CLIENT_NAME)
        self._on_marks = on_marks
        self._patience = patience or Patience()
        self._stream_len_max = stream_len_max
        # Under a cap each write is judged by itself, so that a full queue holds up all that follow.
        self._on_the_way_max = 1 if stream_len_max else _ON_THE_WAY_MAX
        self._on_the_way: deque[RowWrite] = deque()
        self._taught: set[str] = set()
        self._has_many_set: bool | None = None

    def put(self, write: RowWrite) -> None:
        """Send a write; waits for an older one where enough are on the way."""
        if write.script_name not in self._taught:
            self._teach(write)
            return
        while len(self._on_the_way) >= self._on_the_way_max:
            self._settle_oldest()
        self._on_the_way.append(write)
        try:
            self._connection.write(write.request())
        except StoreError as error:
            self._send_all_again(error)

    def drain(self) -> None:
        """Wait until every write is answered."""
        while self._on_the_way:
            self._settle_oldest()

    def has_leftovers(self, job_ids: Sequence[str]) -> bool:
        """Whether former jobs of these ids left results or outcomes."""
        return self._ask(pack(("EXISTS", *leftover_keys(self.keys, job_ids))))[0] > 0

    def has_many_set(self) -> bool:
        """Whether this server sets many keys at once with a time to live; asked once."""
        if self._has_many_set is None:
            self._has_many_set = self._patiently(self._probe_many_set)
        return self._has_many_set

    def wait_ms(self, run: str, row_count: int, rows_per_s: float) -> int:
        """How long these rows must wait for the rate that all tasks of the run share."""
        keys = [self.keys.token(f"pace:{run}")]
        args = (row_count, repr(rows_per_s))
        # Asked twice after a lost reply, the rows wait longer than they must, and no harm is done.
        return self._patiently(partial(self._questions.run, "pace", keys, *args))

    def note(self, report: str, fields: Sequence[str]) -> None:
        """Leave figures of a run where others can see them for an hour."""
        key = self.keys.token(f"report:{report}")
        self._ask(pack(("HSET", key, *fields)) + pack(("EXPIRE", key, _REPORT_TTL_S)), 2)

    def notes(self, report: str) -> dict[str, str]:
        """The figures of a run, as far as they were noted."""
        (flat,) = self._ask(pack(("HGETALL", self.keys.token(f"report:{report}"))))
        texts = [part.decode() for part in flat]
        return dict(zip(texts[::2], texts[1::2], strict=True))

    def drop_notes(self, report: str) -> None:
        """Start again with the figures of a run; a server that is not there is an error at once."""
        self._questions.call("DEL", self.keys.token(f"report:{report}"))

    def forget_run(self, run: str, after_ms: int) -> None:
        """Let go of what is noted about the rows of a run, when no attempt can be under way."""
        asked = [pack(("PEXPIRE", key, after_ms)) for key in bucket_keys(self.keys, run)]
        self._ask(b"".join(asked), len(asked))

    def close(self) -> None:
        self._connection.close()
        self._questions.close()

    def _ask(self, request: bytes, reply_count: int = 1) -> list[Reply]:
        return self._patiently(partial(self._questions.ask, request, reply_count))

    def _probe_many_set(self) -> bool:
        return has_many_set(self._questions.send(many_set_question(self.keys), 2))

    def _patiently(self, ask: Callable[[], Answer]) -> Answer:
        """Questions, and notes that may be made twice: asked again for a while after an error."""
        within_s = self._patience.resend_s
        return ask_patiently(
            ask, is_worth_resending, within_s=within_s, pause_s=_PAUSE_MS_MAX / 1000
        )

    def _teach(self, write: RowWrite) -> None:
        """The first write of a script goes alone: a server that does not know it gets its text once."""
        self.drain()
        self._send_until_done(write, self._exchange(write.request()))
        self._taught.add(write.script_name)

    def _settle_oldest(self) -> None:
        try:
            reply = self._connection.read()
        except StoreError as error:
            self._send_all_again(error)
            return
        write = self._on_the_way.popleft()
        if isinstance(reply, StoreError) or reply == _FULL:
            self._settle_others_first(write, reply)
            return
        self._on_marks(write, read_marks(reply))

    def _settle_others_first(self, write: RowWrite, reply: Reply) -> None:
        """Replies that are under way come first; then there is time to care for this write."""
        while self._on_the_way:
            self._settle_oldest()
        self._send_until_done(write, reply)

    def _send_all_again(self, error: StoreError) -> None:
        waiting, self._on_the_way = self._on_the_way, deque()
        self._connection.close()
        for write in waiting:
            self._send_until_done(write, error)

    def _send_until_done(self, write: RowWrite, reply: Reply) -> None:
        began_s = time.monotonic()
        for tries in count(1):
            if is_forgotten(reply):
                reply = self._exchange(write.request_with_text())
            if not isinstance(reply, StoreError) and reply != _FULL:
                self._on_marks(write, read_marks(reply))
                return
            self._raise_if_over(write, reply, time.monotonic() - began_s)
            time.sleep(doubled_ms(tries, _PAUSE_MS_MIN, _PAUSE_MS_MAX) / 1000)
            reply = self._exchange(write.request())

    def _exchange(self, request: bytes) -> Reply:
        try:
            return self._connection.send(request)[0]
        except StoreError as error:
            return error

    def _raise_if_over(self, write: RowWrite, reply: Reply, waited_s: float) -> None:
        if reply == _FULL:
            if waited_s >= self._patience.full_s:
                raise QueueFull(self.keys.queue, self._stream_len_max, write.jobs.ids)
            return
        # A server without memory is a queue that is full for everyone.
        is_full = isinstance(reply, ServerOutOfMemory)
        may_heal = is_full or isinstance(reply, ConnectionLost) or is_worth_resending(reply)
        within_s = self._patience.full_s if is_full else self._patience.resend_s
        if not may_heal or waited_s >= within_s:
            raise reply


class _Pipe(BlockingConnection):
    """The same connection, with requests that leave before earlier ones are answered."""

    def write(self, request: bytes) -> None:
        """Write now; `read` fetches the reply, in the order of the requests."""
        socket = self._socket()
        try:
            socket.sendall(request)
        except OSError as error:
            raise self._broken(error) from error

    def read(self) -> Reply:
        """The next reply, an error reply included."""
        socket = self._socket()
        try:
            return self._receive(socket)
        except (OSError, hiredis.ProtocolError) as error:
            raise self._broken(error) from error

    def _broken(self, error: Exception) -> ConnectionLost:
        self.close()
        return ConnectionLost(f"the connection to the server broke: {error}")
