"""Makes new jobs: ids (ULIDs), checked options, encoded payloads and envelopes, one or many."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from hashlib import blake2b
from itertools import repeat
from operator import add, methodcaller
from typing import Any, TypeVar

import msgspec

from chasquimq.errors import PayloadTooLarge, SettingsError, WireError
from chasquimq.model.job_options import JobOptions, RetryOverride, Wait, optional_ms
from chasquimq.wire.envelope import encode_envelope, encode_plain_envelope
from chasquimq.wire.keys import check_job_id, check_job_name
from chasquimq.wire.payload import encode_payload

# ── ids ───────────────────────────────────────────────────────────────────────────────────────────

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_TIME_CHARS = 10
_RANDOM_CHARS = 16
_POOLED = 256
_TIME_BITS = 48
_PAIRS = [first + second for first in _ALPHABET for second in _ALPHABET]
_DIGITS = {char: digit for digit, char in enumerate(_ALPHABET)}
# 256 is a multiple of 32, so taking each byte modulo 32 keeps the characters uniform.
_CHAR_OF_BYTE = bytes(ord(_ALPHABET[byte % 32]) for byte in range(256))


def wall_ms() -> int:
    """Return the time of day of this machine, by which ids are stamped."""
    return time.time_ns() // 1_000_000


def new_job_id(now_ms: int) -> str:
    """Return one fresh id stamped with `now_ms`."""
    # Random bytes from the kernel for each id would cost more than the rest of an add.
    try:
        noise = _pool.pop()
    except IndexError:
        _refill()
        noise = _pool.pop()
    return _encode_time(now_ms) + noise


def new_job_ids(count: int, now_ms: int) -> list[str]:
    """Return `count` fresh ids stamped with `now_ms`.

    A thousand and twenty-four share 70 bits of noise and are in order: they need to differ only
    from the ids of other calls in the same millisecond.
    """
    job_ids: list[str] = []
    while (left := count - len(job_ids)) > 0:
        start = new_job_id(now_ms)[:-2]
        job_ids += [start + pair for pair in _PAIRS[:left]]
    return job_ids


def stable_job_id(seed: bytes, at_ms: int) -> str:
    """Return the id for this seed and time; it is the same for every caller."""
    digest = blake2b(seed + at_ms.to_bytes(8, "big"), digest_size=_RANDOM_CHARS).digest()
    return _encode_time(at_ms) + digest.translate(_CHAR_OF_BYTE).decode("ascii")


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
def _encode_time(now_ms: int) -> str:
    assert 0 <= now_ms < 1 << _TIME_BITS, "a ULID holds 48 bits of milliseconds"
    return "".join([_PAIRS[now_ms >> shift & 1023] for shift in (40, 30, 20, 10, 0)])


_pool: list[str] = []


def _refill() -> None:
    noise = os.urandom(_POOLED * _RANDOM_CHARS).translate(_CHAR_OF_BYTE).decode("ascii")
    _pool.extend([noise[at : at + _RANDOM_CHARS] for at in range(0, len(noise), _RANDOM_CHARS)])


# A forked child must not hand out the ids that its parent will.
os.register_at_fork(after_in_child=_pool.clear)


# ── one job ───────────────────────────────────────────────────────────────────────────────────────

JobSpec = Mapping[str, Any]
T = TypeVar("T")
# Takes a job, an id that it may have, and the time.
EncodeOne = Callable[[JobSpec, str, int], T]
# Names that were checked already; more than this are checked each time.
_GOOD_NAMES_MAX = 1_024
JOB_DIGEST_BYTES = 12


class NewJob(msgspec.Struct, frozen=True, gc=False):
    """A job that is checked and has its payload packed; its envelope is encoded when it is sent.

    `digest` is empty unless the id is the caller's own, `wait` is None for a job that is ready now.
    """

    job_id: str
    name: str
    payload: bytes
    created_at_ms: int
    retry: RetryOverride | None = None
    extras: dict[str, Any] | None = None
    digest: str = ""
    wait: Wait | None = None

    @property
    def envelope(self) -> bytes:
        if self.retry is None and self.extras is None:
            return encode_plain_envelope((self.job_id, self.payload, self.created_at_ms, 0))
        return encode_envelope(
            self.job_id, self.payload, self.created_at_ms, 0, self.retry, self.extras
        )


class JobEncoder:
    """Checks and encodes jobs of one queue."""

    def __init__(
        self,
        payload_bytes_max: int,
        delay_s_max: int,
        encode: Callable[[Any], bytes] = encode_payload,
    ) -> None:
        self._payload_bytes_max = payload_bytes_max
        self._delay_s_max = delay_s_max
        self._encode = encode
        self._good_names: set[str] = set()

    def encode(self, spec: JobSpec, fresh_id: str, now_ms: int) -> NewJob:
        """One job from a mapping of at least name and data; KeyError names what is missing."""
        # Nearly every bulk is made of plain names and data.
        if len(spec) == 2:
            return self.plain(spec["name"], spec["data"], fresh_id, now_ms)
        options = JobOptions.of(spec)
        return self.with_options(spec["name"], spec["data"], options, fresh_id, now_ms)

    def with_options(
        self, name: str, data: Any, options: JobOptions, fresh_id: str, now_ms: int
    ) -> NewJob:
        """One job that asks for something of its own."""
        name, payload = check_job_name(name), self.payload(data)
        own_id = options.job_id
        job_id = fresh_id if own_id is None else check_job_id(own_id)
        retry, wait = options.retry(), options.wait(self._delay_s_max, now_ms)
        digest = job_digest(name, payload) if own_id else ""
        return NewJob(job_id, name, payload, now_ms, retry, _extras(options), digest, wait)

    def plain(self, name: str, data: Any, job_id: str, now_ms: int) -> NewJob:
        """One job without options."""
        payload = self._encode(data)
        if len(payload) > self._payload_bytes_max:
            raise PayloadTooLarge(len(payload), self._payload_bytes_max)
        if type(name) is not str or name not in self._good_names:
            name = self._check_name(name)
        return NewJob(job_id, name, payload, now_ms)

    def all_plain(self, specs: Sequence[JobSpec], now_ms: int) -> list[NewJob] | None:
        """Many jobs without options; None: one of them has to be looked at by itself."""
        encode, good_names = self._encode, self._good_names
        try:
            names = [spec["name"] for spec in specs if len(spec) == 2]
            if len(names) < len(specs) or not _are_all_in(good_names, names):
                return None
            payloads = [encode(spec["data"]) for spec in specs]
        except (KeyError, WireError):
            return None
        if max(map(len, payloads), default=0) > self._payload_bytes_max:
            return None
        parts = zip(new_job_ids(len(specs), now_ms), names, payloads, strict=True)
        return [NewJob(job_id, name, payload, now_ms) for job_id, name, payload in parts]

    def _check_name(self, name: str) -> str:
        name = check_job_name(name)
        if len(self._good_names) < _GOOD_NAMES_MAX:
            self._good_names.add(name)
        return name

    def payload(self, data: Any) -> bytes:
        """The bytes of a user's value, refused when there are too many of them."""
        payload = self._encode(data)
        if len(payload) > self._payload_bytes_max:
            raise PayloadTooLarge(len(payload), self._payload_bytes_max)
        return payload


def encode_all(
    jobs: Sequence[JobSpec], places: Sequence[int], encode: EncodeOne[T], now_ms: int
) -> list[T]:
    """What `encode` makes of the jobs in these places; an error says which of them is wrong."""
    encoded: list[T] = []
    for at, fresh_id in zip(places, new_job_ids(len(places), now_ms), strict=True):
        try:
            encoded.append(encode(jobs[at], fresh_id, now_ms))
        except (SettingsError, WireError) as error:
            error.args = (f"jobs[{at}]: {error}",)
            raise
        except KeyError as missing:
            what, found = f"jobs[{at}]", sorted(map(str, jobs[at]))
            rule = f"a mapping with {missing.args[0]!r}"
            raise SettingsError(what, found, rule) from None
    return encoded


def check_mappings(jobs: Sequence[JobSpec]) -> None:
    """Refuse what is no list of mappings."""
    # Callers lie.
    is_list = isinstance(jobs, Sequence)  # pyright: ignore[reportUnnecessaryIsInstance]
    if not is_list or isinstance(jobs, str | bytes):
        raise SettingsError("jobs", type(jobs).__name__, "a list of mappings")
    if {type(spec) for spec in jobs} <= {dict}:
        return
    for at, spec in enumerate(jobs):
        if not isinstance(spec, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SettingsError(f"jobs[{at}]", spec, "a mapping with at least name and data")


def ids_of(jobs: Sequence[JobSpec], now_ms: int) -> list[str]:
    """The ids of jobs that are not checked yet, so that an error can name them."""
    fresh_ids = new_job_ids(len(jobs), now_ms)
    return [spec.get("job_id") or one for spec, one in zip(jobs, fresh_ids, strict=True)]


def _are_all_in(good_names: set[str], names: Sequence[Any]) -> bool:
    # What is no text may equal one, or have no hash.
    return set(map(type, names)) == {str} and good_names.issuperset(names)


def raw_payload(data: Any) -> bytes:
    """Bytes as they are, for callers that encode their own."""
    if not isinstance(data, bytes):
        raise TypeError(f"a payload must be bytes, got {data!r:.100}")
    return bytes(data)


def _extras(options: JobOptions) -> dict[str, Any] | None:
    extras = {
        "expires_ms": optional_ms("expires_ms", options.expires_ms),
        "timeout_ms": optional_ms("timeout_ms", options.timeout_ms),
    }
    return {key: value for key, value in extras.items() if value is not None} or None


def job_digest(name: str, payload: bytes) -> str:
    """Return a digest of name and payload, by which two jobs of one id differ."""
    encoded = name.encode()
    # A name that holds the mark between name and payload says how long it is.
    person = b"%d" % len(encoded) if b"\0" in encoded else b""
    hashed = blake2b(encoded + b"\0" + payload, digest_size=JOB_DIGEST_BYTES, person=person)
    return hashed.hexdigest()


# ── many rows ─────────────────────────────────────────────────────────────────────────────────────

# The digest of a row of a run; its hex is the id of the job.
ROW_DIGEST_BYTES = 16
_KEY_BYTES_MAX = 64
_encode = msgspec.msgpack.Encoder().encode
_digest = methodcaller("digest")


def encode_values(values: Iterable[object]) -> list[bytes]:
    """Payloads from plain values, encoded as `encode_payload` does."""
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
    # Two shapes: without an override ChasquiMQ (Rust) writes four elements, not five and a nil.
    return [
        _encode((one, payload, now_ms, 0, retries[most]) if most else (one, payload, now_ms, 0))
        for one, payload, most in zip(ids, payloads, attempts, strict=True)
    ]


def job_digests(names: Sequence[str], payloads: Sequence[bytes]) -> list[str]:
    """Return the digests that `Queue.add` keeps in the markers of ids, for many jobs."""
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
    """Return what identifies each row within a run, whatever other rows it comes with."""
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
    """Encode all but the payload, with lengths, so that no two rows encode alike.

    A row without a wait is the same row whether its neighbours have waits or not.
    """
    encoded = name.encode()
    return b"%d:%b%d:%d:" % (len(encoded), encoded, wait_ms or 0, attempts or 0)
