"""One script call for many rows, spelled so that sending it twice adds each row once."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import TYPE_CHECKING

from chasquimq.store.add_write import TOKEN_TTL_S
from chasquimq.store.script import script

if TYPE_CHECKING:
    from chasquimq.store.connection import Part, Reply
    from chasquimq.wire.keys import QueueKeys

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
    """Who writes rows of a run: attempts of one partition stand for each other."""

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
    for at in range(0, len(jobs), OWN_ID_ROWS_PER_WRITE_MAX):
        places = slice(at, at + OWN_ID_ROWS_PER_WRITE_MAX)
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
    for at in range(0, len(jobs), OWN_ID_ROWS_PER_WRITE_MAX):
        places = slice(at, at + OWN_ID_ROWS_PER_WRITE_MAX)
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
    for at in range(0, len(jobs), count_max):
        places = slice(at, at + count_max)
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
    who = (owner.instance, owner.partition, owner.attempt)
    bell = 0 if jobs.waits_ms is None else keys.bell
    args = [stream_len_max, TOKEN_TTL_S, keep_ms, *who, bell]
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
