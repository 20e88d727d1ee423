"""Rows of a table as jobs: envelopes and digests of a thousand at once, each loop inside C."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from hashlib import blake2b
from itertools import repeat
from operator import add, methodcaller

import msgspec

from chasquimq.model.backoff import RetryOverride
from chasquimq.wire.new_job import JOB_DIGEST_BYTES, job_digest

# The digest of a row of a run; its hex is the id of the job.
ROW_DIGEST_BYTES = 16
_KEY_BYTES_MAX = 64
_encode = msgspec.msgpack.Encoder().encode
_digest = methodcaller("digest")


def encode_values(values: Iterable[object]) -> list[bytes]:
    """Payloads from plain values, spelled as `encode_payload` does."""
    return list(map(_encode, values))


def encode_envelopes(
    ids: Sequence[str],
    payloads: Sequence[bytes],
    now_ms: int,
    attempts: Sequence[int | None] | None = None,
) -> list[bytes]:
    """Envelopes of jobs that have not run yet; `attempts` is how often each may run."""
    if attempts is None:
        return list(map(_encode, zip(ids, payloads, repeat(now_ms), repeat(0))))
    retries = {most: RetryOverride(most, None) for most in set(attempts) if most is not None}
    # Two shapes: without an override the original writes four elements, not five and a nil.
    return [
        _encode((one, payload, now_ms, 0, retries[most]) if most else (one, payload, now_ms, 0))
        for one, payload, most in zip(ids, payloads, attempts, strict=True)
    ]


def job_digests(names: Sequence[str], payloads: Sequence[bytes]) -> list[str]:
    """What tells two jobs of one id apart; the digest that `Queue.add` leaves in a marker."""
    if any("\0" in name for name in set(names)):
        return list(map(job_digest, names, payloads))
    begun = {
        name: blake2b(name.encode() + b"\0", digest_size=JOB_DIGEST_BYTES) for name in set(names)
    }
    return [_ended(begun[name], payload) for name, payload in zip(names, payloads, strict=True)]


def row_digests(
    run: str,
    names: Sequence[str],
    payloads: Sequence[bytes],
    waits_ms: Sequence[int] | None = None,
    attempts: Sequence[int | None] | None = None,
) -> list[bytes]:
    """What names a row within a run, whatever other rows it comes with."""
    key = blake2b(run.encode(), digest_size=_KEY_BYTES_MAX).digest()
    contents = _row_contents(names, payloads, waits_ms, attempts)
    hashes = map(partial(blake2b, digest_size=ROW_DIGEST_BYTES, key=key), contents)
    return list(map(_digest, hashes))


def _ended(begun: blake2b, payload: bytes) -> str:
    # A copy costs half of a new hash.
    hashed = begun.copy()
    hashed.update(payload)
    return hashed.hexdigest()


def _row_contents(
    names: Sequence[str],
    payloads: Sequence[bytes],
    waits_ms: Sequence[int] | None,
    attempts: Sequence[int | None] | None,
) -> Iterable[bytes]:
    if waits_ms is None and attempts is None and len(set(names)) == 1:
        return map(_row_head(names[0], None, None).__add__, payloads)
    heads = map(_row_head, names, waits_ms or repeat(None), attempts or repeat(None))
    return map(add, heads, payloads)


def _row_head(name: str, wait_ms: int | None, attempts: int | None) -> bytes:
    """All but the payload; its end can be told, so no two rows spell alike.

    A row without a wait is the same one whether its neighbours have waits or not.
    """
    spelled = name.encode()
    return b"%d:%b%d:%d:" % (len(spelled), spelled, wait_ms or 0, attempts or 0)
