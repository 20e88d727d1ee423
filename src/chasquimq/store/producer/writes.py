"""One write of up to a thousand adds, spelled so that sending it twice adds each job once."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from chasquimq.errors import StoreError
from chasquimq.store.net.script import script
from chasquimq.wire.new_job import NewJob

if TYPE_CHECKING:
    from chasquimq.settings import ProducerSettings
    from chasquimq.store.net.connection import Connection, Part, Reply
    from chasquimq.wire.keys import QueueKeys
    from chasquimq.wire.stream_entry import XaddTemplate

JOBS_PER_WRITE_MAX = 1_000
# Ids of callers and waits cost the server more a job: in writes of a thousand up to 20 ms.
COSTLY_JOBS_PER_WRITE_MAX = 250
BYTES_PER_WRITE_MAX = 1024 * 1024
TOKEN_TTL_S = 120
# Fewer jobs than this are spelled sooner than a second write leaves.
_PIECE_MIN = 128
_PIECES_MAX = 8


# The jobs of one write, and how many bytes their payloads have.
Chunk = tuple[Sequence[NewJob], int]
# Requests with the number of replies that each brings.
Pieces = Iterable[tuple[bytes, int]]


class AddMark(IntEnum):
    """What became of one job of a write."""

    DUPLICATE = 0
    ADDED = 1
    CONFLICT = 2


# An attribute of an enum costs more than the comparison it is for.
ADDED = AddMark.ADDED


class AddWrite(Protocol):
    """A write that can be sent again."""

    jobs: Sequence[NewJob]
    # Whether the server may have added some of the jobs; true while an answer is awaited.
    may_be_done: bool

    def pieces(self) -> Pieces:
        """The bytes to send and how many replies they bring; the same for every send."""
        ...

    def request_with_text(self) -> bytes:
        """The bytes to send when the server forgot the script."""
        ...

    def marks(self, replies: list[Reply]) -> list[AddMark] | None:
        """One mark a job; None: the jobs do not fit under the cap. Error replies are raised."""
        ...


# One for each piece that was sent.
Answers = Sequence[asyncio.Future[list[Any]]]


class AddDeadline(NamedTuple):
    """Until when a call must be answered, in the time of its loop.

    One that does not `wait` is not sent again, and does not outlast a server that is away.
    """

    at_s: float
    limit_ms: int
    waits: bool

    def renewed(self, now_s: float) -> AddDeadline:
        """As long again."""
        return AddDeadline(now_s + self.limit_ms / 1000, self.limit_ms, self.waits)


class PendingWrite:
    """A write that is not confirmed yet; before it first leaves it may be spelled anew."""

    __slots__ = ("deadline", "trouble", "write")

    def __init__(self, write: AddWrite, deadline: AddDeadline) -> None:
        self.write = write
        self.deadline = deadline
        # How the last send ended.
        self.trouble: StoreError | None = None

    def leave_out_gone(self, spell: Callable[[Sequence[NewJob]], AddWrite]) -> None:
        """Spell it without the jobs that nobody waits for any more; called before it leaves."""


class SentWrite(PendingWrite):
    """A write of one call that has left at once."""

    __slots__ = ("answers", "first_s")

    def __init__(self, write: AddWrite, deadline: AddDeadline, answers: Answers) -> None:
        super().__init__(write, deadline)
        self.answers = answers
        self.first_s = deadline.at_s

    def answer_late(self, now_s: float) -> None:
        self.first_s = inf
        for answer in self.answers:
            if not answer.done():
                # What the connection brings later is for nobody.
                answer.set_exception(TimeoutError())
                answer.exception()  # only the first of them is waited for


class PlainWrite:
    """One XADD a job; the server itself remembers the ids where the template carries them."""

    may_be_done = False

    def __init__(self, jobs: Sequence[NewJob], template: XaddTemplate) -> None:
        self.jobs = jobs
        self._template = template

    def pieces(self) -> Pieces:
        if len(self.jobs) <= _PIECE_MIN:
            return ((self._template.encode(self.jobs), len(self.jobs)),)
        return self._many_pieces()

    def _many_pieces(self) -> Iterator[tuple[bytes, int]]:
        """Spelled when asked for: the server works on the first while the next is made."""
        size = max(_PIECE_MIN, -(-len(self.jobs) // _PIECES_MAX))
        for at in range(0, len(self.jobs), size):
            piece = self.jobs[at : at + size]
            yield self._template.encode(piece), len(piece)

    def request_with_text(self) -> bytes:
        return self._template.encode(self.jobs)

    def marks(self, replies: list[Reply]) -> list[AddMark] | None:
        if set(map(type, replies)) != {bytes}:
            self._raise_refusal(replies)
        return [ADDED] * len(replies)

    def _raise_refusal(self, replies: list[Reply]) -> None:
        """The first error reply, about all jobs that have one."""
        refused = [at for at, reply in enumerate(replies) if isinstance(reply, StoreError)]
        if refused:
            error: StoreError = replies[refused[0]]
            error.job_ids = [self.jobs[at].job_id for at in refused]
            raise error


class RememberedWrite:
    """One script call for all jobs, remembered by a token of its own."""

    script_name: str
    may_be_done = False
    jobs: Sequence[NewJob]
    _keys: list[str]
    _args: list[Part]

    def pieces(self) -> Pieces:
        return [(script(self.script_name).by_hash(self._keys, self._args), 1)]

    def request_with_text(self) -> bytes:
        return script(self.script_name).by_text(self._keys, self._args)

    def marks(self, replies: list[Reply]) -> list[AddMark] | None:
        (reply,) = replies
        if isinstance(reply, StoreError):
            reply.job_ids = [job.job_id for job in self.jobs]
            raise reply
        if reply == b"full":
            return None
        return [AddMark(mark) for mark in reply]


class ScriptWrite(RememberedWrite):
    """Jobs that are ready now, under a cap, with ids of their own, or without native help."""

    script_name = "add"

    def __init__(
        self, jobs: Sequence[NewJob], keys: QueueKeys, settings: ProducerSettings, unique_ms: int
    ) -> None:
        self.jobs = jobs
        own_ids = [job.job_id for job in jobs if job.digest]
        self._keys = [keys.stream, keys.token(secrets.token_hex(12)), *map(keys.uniq, own_ids)]
        self._keys += leftovers(keys, own_ids)
        self._args = [settings.max_stream_len or 0, TOKEN_TTL_S, unique_ms]
        for job in jobs:
            self._args += (job.envelope, job.name, job.digest)


def send_pieces(connection: Connection, pieces: Pieces, *, block_ms: int = 0) -> Answers:
    """Send each piece as soon as it is spelled."""
    return [connection.send(request, count, block_ms=block_ms) for request, count in pieces]


def leftovers(keys: QueueKeys, job_ids: Iterable[str]) -> list[str]:
    """Where former jobs of these ids may have left their ends."""
    return [key for one in job_ids for key in (keys.outcome(one), keys.result(one))]


_payload_of = attrgetter("payload")


def payload_bytes(jobs: Sequence[NewJob]) -> int:
    """How much data the jobs carry."""
    return sum(map(len, map(_payload_of, jobs)))


def chunks(
    jobs: Sequence[NewJob], size: int, count_max: int = JOBS_PER_WRITE_MAX
) -> Sequence[Chunk]:
    """The jobs in slices that respect both ceilings of a write; `size` is their payload bytes."""
    if size <= BYTES_PER_WRITE_MAX and len(jobs) <= count_max:
        return [(jobs, size)] if jobs else []
    return list(_cut(jobs, count_max))


def _cut(jobs: Sequence[NewJob], count_max: int) -> Iterator[Chunk]:
    start = size = 0
    for at, job in enumerate(jobs):
        more = len(job.payload)
        if at > start and (at - start == count_max or size + more > BYTES_PER_WRITE_MAX):
            yield jobs[start:at], size
            start, size = at, 0
        size += more
    if start < len(jobs):
        yield jobs[start:], size


class DelayWrite(RememberedWrite):
    """The server's clock turns each wait into a due time."""

    script_name = "schedule"

    def __init__(
        self, jobs: Sequence[NewJob], keys: QueueKeys, settings: ProducerSettings, unique_ms: int
    ) -> None:
        self.jobs = jobs
        self._keys = [keys.delayed, keys.dix, keys.stream, keys.token(secrets.token_hex(12))]
        self._args = [TOKEN_TTL_S, unique_ms]
        for job in jobs:
            assert job.wait is not None, "a job without a wait goes the immediate way"
            if job.digest:
                job_id = job.job_id
                self._keys += (keys.uniq(job_id), keys.dlid(job_id), keys.didx(job_id))
            how = "at" if job.wait.is_absolute else "in"
            self._args += (job.envelope, job.name, job.digest, job.job_id, job.wait.ms, how)
        self._args += (settings.max_stream_len or 0, keys.bell)
        self._keys += leftovers(keys, [job.job_id for job in jobs if job.digest])
