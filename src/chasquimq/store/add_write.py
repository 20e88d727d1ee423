"""One write of up to a thousand adds, spelled so that sending it twice adds each job once."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

from chasquimq.errors import StoreError
from chasquimq.store.script import script
from chasquimq.wire.new_job import NewJob

if TYPE_CHECKING:
    from chasquimq.settings import ProducerSettings
    from chasquimq.store.connection import Part, Reply
    from chasquimq.wire.keys import QueueKeys
    from chasquimq.wire.resp import XaddTemplate

JOBS_PER_WRITE_MAX = 1_000
BYTES_PER_WRITE_MAX = 1024 * 1024
TOKEN_TTL_S = 120


class AddMark(IntEnum):
    """What became of one job of a write."""

    DUPLICATE = 0
    ADDED = 1
    CONFLICT = 2


class AddWrite(Protocol):
    """A write that can be sent again."""

    jobs: Sequence[NewJob]
    reply_count: int

    def request(self) -> bytes:
        """The bytes to send; the same for every send."""
        ...

    def request_with_text(self) -> bytes:
        """The bytes to send when the server forgot the script."""
        ...

    def marks(self, replies: list[Reply]) -> list[AddMark] | None:
        """One mark a job; None: the jobs do not fit under the cap. Error replies are raised."""
        ...


class PlainWrite:
    """One XADD a job; the server itself remembers the ids where the template carries them."""

    def __init__(self, jobs: Sequence[NewJob], template: XaddTemplate) -> None:
        self.jobs = jobs
        self.reply_count = len(jobs)
        spell = template.spell
        self._request = b"".join([spell(job.job_id, job.name, job.envelope) for job in jobs])

    def request(self) -> bytes:
        return self._request

    def request_with_text(self) -> bytes:
        return self._request

    def marks(self, replies: list[Reply]) -> list[AddMark] | None:
        for at, reply in enumerate(replies):
            if isinstance(reply, StoreError):
                reply.job_ids = [
                    job.job_id
                    for job, answer in zip(self.jobs[at:], replies[at:], strict=True)
                    if isinstance(answer, StoreError)
                ]
                raise reply
        return [AddMark.ADDED] * len(replies)


class RememberedWrite:
    """One script call for all jobs, remembered by a token of its own."""

    script_name: str
    reply_count = 1
    jobs: Sequence[NewJob]
    _keys: list[str]
    _args: list[Part]

    def request(self) -> bytes:
        return script(self.script_name).by_hash(self._keys, self._args)

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


def leftovers(keys: QueueKeys, job_ids: Iterable[str]) -> list[str]:
    """Where former jobs of these ids may have left their ends."""
    return [key for one in job_ids for key in (keys.outcome(one), keys.result(one))]


def chunks(jobs: Sequence[NewJob]) -> Sequence[Sequence[NewJob]]:
    """The jobs in slices that respect both ceilings of a write."""
    is_small = sum([len(job.envelope) for job in jobs]) <= BYTES_PER_WRITE_MAX
    if is_small and len(jobs) <= JOBS_PER_WRITE_MAX:
        return [jobs] if jobs else []
    return list(_cut(jobs))


def _cut(jobs: Sequence[NewJob]) -> Iterator[Sequence[NewJob]]:
    start = size = 0
    for at, job in enumerate(jobs):
        size += len(job.envelope)
        if at > start and (at - start == JOBS_PER_WRITE_MAX or size > BYTES_PER_WRITE_MAX):
            yield jobs[start:at]
            start, size = at, len(job.envelope)
    if start < len(jobs):
        yield jobs[start:]
