"""Job ids: ULIDs, 48 bits of time and 80 bits of noise in upper-case Crockford base32."""

from __future__ import annotations

import os
from functools import lru_cache
from hashlib import blake2b

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_TIME_CHARS = 10
_RANDOM_CHARS = 16
_POOLED = 256
_TIME_BITS = 48
_PAIRS = [first + second for first in _ALPHABET for second in _ALPHABET]
_DIGITS = {char: digit for digit, char in enumerate(_ALPHABET)}
# 256 is a multiple of 32, so taking each byte modulo 32 keeps the characters uniform.
_CHAR_OF_BYTE = bytes(ord(_ALPHABET[byte % 32]) for byte in range(256))


def new_job_id(now_ms: int) -> str:
    """Return one fresh id stamped with `now_ms`."""
    # Asking the kernel for each id costs more than the rest of an add's spelling.
    try:
        noise = _pool.pop()
    except IndexError:
        _refill()
        noise = _pool.pop()
    return _spell_time(now_ms) + noise


def new_job_ids(count: int, now_ms: int) -> list[str]:
    """Return `count` fresh ids stamped with `now_ms`.

    A thousand and twenty-four share 70 bits of noise and are in order: those that one call adds
    need only be told from those of other calls in the same millisecond.
    """
    job_ids: list[str] = []
    while (left := count - len(job_ids)) > 0:
        start = new_job_id(now_ms)[:-2]
        job_ids += [start + pair for pair in _PAIRS[:left]]
    return job_ids


def stable_job_id(seed: bytes, at_ms: int) -> str:
    """Return the id that this seed has at this time; whoever asks gets the same."""
    digest = blake2b(seed + at_ms.to_bytes(8, "big"), digest_size=_RANDOM_CHARS).digest()
    return _spell_time(at_ms) + digest.translate(_CHAR_OF_BYTE).decode("ascii")


def ulid_ms(job_id: str) -> int | None:
    """Return the time inside an id, or None where the id is not a ULID as we write them."""
    if len(job_id) != _TIME_CHARS + _RANDOM_CHARS or not _DIGITS.keys() >= set(job_id):
        return None
    ms = 0
    for char in job_id[:_TIME_CHARS]:
        ms = ms << 5 | _DIGITS[char]
    return ms if ms >> _TIME_BITS == 0 else None


# Many ids share a millisecond.
@lru_cache(maxsize=4)
def _spell_time(now_ms: int) -> str:
    assert 0 <= now_ms < 1 << _TIME_BITS, "a ULID holds 48 bits of milliseconds"
    return "".join([_PAIRS[now_ms >> shift & 1023] for shift in (40, 30, 20, 10, 0)])


_pool: list[str] = []


def _refill() -> None:
    noise = os.urandom(_POOLED * _RANDOM_CHARS).translate(_CHAR_OF_BYTE).decode("ascii")
    _pool.extend([noise[at : at + _RANDOM_CHARS] for at in range(0, len(noise), _RANDOM_CHARS)])


# A forked child must not hand out the ids that its parent will.
os.register_at_fork(after_in_child=_pool.clear)
