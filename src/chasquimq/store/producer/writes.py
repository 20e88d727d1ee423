"""Encodes up to a thousand adds as one write that adds each job once, however often it is sent."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from operator import attrgetter
from typing import TYPE_CHECKING, NoReturn, Protocol

from chasquimq.errors import ConnectionLost, QueueFull, StoreError
from chasquimq.model.chunks import in_chunks, in_sized_chunks
from chasquimq.store.net.script import script
from chasquimq.wire.new_job import NewJob
from chasquimq.wire.stream_entry import NAMES_CACHED_MAX, fixed

if TYPE_CHECKING:
    from chasquimq.settings import ProducerSettings
    from chasquimq.store.net.abilities import Abilities
    from chasquimq.store.net.connection import Part, Reply
    from chasquimq.wire.keys import QueueKeys

JOBS_PER_WRITE_MAX = 1_000
# Ids of callers and waits cost the server more a job: in writes of a thousand up to 20 ms.
COSTLY_JOBS_PER_WRITE_MAX = 250
BYTES_PER_WRITE_MAX = 1024 * 1024
TOKEN_TTL_S = 120
# Fewer jobs than this are encoded sooner than a second write leaves.
_PIECE_MIN = 128
_PIECES_MAX = 8
# Only ids of callers have a window.
_UNUSED_MS = 1
_payload_of, _digest_of = attrgetter("payload"), attrgetter("digest")


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
        """Encode each when asked for it: the server works on one while the next is made."""
        size = max(_PIECE_MIN, -(-len(self.jobs) // _PIECES_MAX))
        for piece in in_chunks(self.jobs, size):
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
        return ((script(self.script_name).by_hash(self._keys, self._args), 1),)

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


class Entry(Protocol):
    """A job as the stream stores it."""

    @property
    def job_id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def envelope(self) -> bytes: ...


class XaddTemplate:
    """Encodes `XADD key [IDMP producer_id job_id] * d <envelope> [n <name>]` for one stream."""

    __slots__ = ("_head", "_is_gated", "_templates")

    def __init__(self, key: str, *, producer_id: str | None) -> None:
        self._is_gated = producer_id is not None
        gate = () if producer_id is None else ("IDMP", producer_id)
        self._head = (b"XADD", key, *gate)
        self._templates: dict[str, bytes] = {}

    def encode(self, jobs: Iterable[Entry]) -> bytes:
        """Return one command a job; an empty name leaves `n` out."""
        templates, is_gated = self._templates, self._is_gated
        encoded: list[bytes] = []
        for job in jobs:
            template = templates.get(job.name) or self._learn(job.name)
            envelope = job.envelope
            if is_gated:
                job_id = job.job_id.encode()
                encoded.append(template % (len(job_id), job_id, len(envelope), envelope))
            else:
                encoded.append(template % (len(envelope), envelope))
        return b"".join(encoded)

    def _learn(self, name: str) -> bytes:
        # Names made up per job must not fill the memory; forgetting costs a microsecond each.
        if len(self._templates) >= NAMES_CACHED_MAX:
            self._templates.clear()
        template = self._templates[name] = self._make(name)
        return template

    def _make(self, name: str) -> bytes:
        named = ("n", name) if name else ()
        before = [fixed(part) for part in self._head]
        job_id = [_HOLE] if self._is_gated else []
        after = [fixed(part) for part in ("*", "d")]
        parts = [*before, *job_id, *after, _HOLE, *map(fixed, named)]
        return b"*%d\r\n" % len(parts) + b"".join(parts)


# Filled by `%` with the length and the bytes of what changes from job to job.
_HOLE = b"$%d\r\n%b\r\n"


class AddEncoder:
    """Encodes jobs in the cheapest write that keeps the promises they ask for."""

    # Known as soon as a connection has probed its server.
    abilities: Abilities | None = None

    def __init__(self, keys: QueueKeys, settings: ProducerSettings, producer_id: str) -> None:
        self._keys = keys
        self._settings = settings
        # Under a cap each job is judged alone, so that one too many refuses only itself.
        self.is_capped = settings.max_stream_len is not None
        self._plain = XaddTemplate(keys.stream, producer_id=None)
        self._gated = XaddTemplate(keys.stream, producer_id=producer_id)

    def encode(self, jobs: Sequence[NewJob], unique_ms: int) -> AddWrite:
        """Encode jobs that are all ready now, or all delayed."""
        if jobs[0].wait is not None:
            return DelayWrite(jobs, self._keys, self._settings, unique_ms)
        if self.needs_script(jobs):
            return ScriptWrite(jobs, self._keys, self._settings, unique_ms)
        return self.encode_ready(jobs)

    def encode_ready(self, jobs: Sequence[NewJob]) -> AddWrite:
        """Encode jobs that are ready now, under fresh ids and no cap."""
        if not self._settings.resend:
            return PlainWrite(jobs, self._plain)
        if self.has_idempotent_add:
            return PlainWrite(jobs, self._gated)
        return ScriptWrite(jobs, self._keys, self._settings, _UNUSED_MS)

    def needs_script(self, jobs: Sequence[NewJob]) -> bool:
        """Whether only a script keeps the promises for jobs that are ready now."""
        return self.is_capped or has_own_ids(jobs)

    @property
    def has_idempotent_add(self) -> bool:
        """Whether the server itself remembers what a producer added."""
        assert self.abilities is not None, "a connection probes the server before it is used"
        return self.abilities.idempotent_add

    def refuse_full(self, jobs: Sequence[NewJob]) -> NoReturn:
        """Raise that the jobs do not fit under the cap."""
        cap = self._settings.max_stream_len
        assert cap is not None, "only a capped queue can be full"
        raise QueueFull(self._keys.queue, cap, ids_of(jobs))

    def refitted(self, write: AddWrite) -> AddWrite:
        """The write for the server that answers now, which may be of another kind.

        Raises:
            ConnectionLost: jobs may be added already, and this server would not recognise them.
        """
        if not self._settings.resend or write.jobs[0].wait is not None:
            return write
        is_plain = isinstance(write, PlainWrite)
        if is_plain is self.has_idempotent_add or self.needs_script(write.jobs):
            return write
        if not write.may_be_done:
            return self.encode_ready(write.jobs)
        if is_plain:
            raise _not_recognised(write.jobs)
        # Every server knows scripts, and one with the same jobs has the token of this write too.
        return write


def _not_recognised(jobs: Sequence[NewJob]) -> ConnectionLost:
    return ConnectionLost(
        "a write that may have been done must be sent again to a server that remembers it, and "
        "the one that answers now lacks XADD IDMP, by which it was sent: the jobs may have been "
        "added or not; look for them before you add them again",
        job_ids=ids_of(jobs),
    )


def leftovers(keys: QueueKeys, job_ids: Iterable[str]) -> list[str]:
    """Where former jobs of these ids may have left their ends."""
    return [key for one in job_ids for key in (keys.outcome(one), keys.result(one))]


def ids_of(*parts: Sequence[NewJob]) -> list[str]:
    """The ids of the jobs, part by part."""
    return [job.job_id for part in parts for job in part]


def has_own_ids(jobs: Sequence[NewJob]) -> bool:
    """Whether callers chose the ids of some jobs."""
    return any(map(_digest_of, jobs))


def payload_bytes(jobs: Sequence[NewJob]) -> int:
    """How much data the jobs carry."""
    return sum(map(len, map(_payload_of, jobs)))


def chunks(
    jobs: Sequence[NewJob], size: int, count_max: int = JOBS_PER_WRITE_MAX
) -> Sequence[Chunk]:
    """The jobs in slices that respect both ceilings of a write; `size` is their payload bytes."""
    if size <= BYTES_PER_WRITE_MAX and len(jobs) <= count_max:
        return [(jobs, size)] if jobs else []
    return list(in_sized_chunks(jobs, count_max, BYTES_PER_WRITE_MAX, lambda job: len(job.payload)))
