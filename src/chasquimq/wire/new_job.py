"""What a caller asks for becomes a job ready to be written: checked whole, then spelled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from chasquimq.errors import PayloadTooLarge, SettingsError, WireError
from chasquimq.model.backoff import RetryOverride
from chasquimq.model.options import Wait, optional_ms, retry_override, wait_of
from chasquimq.wire.codec import encode_envelope, encode_payload, encode_plain_envelope
from chasquimq.wire.job_id import new_job_ids
from chasquimq.wire.names import check_job_id, check_job_name

JobSpec = Mapping[str, Any]
# Names that were checked already; more than this are checked each time.
_GOOD_NAMES_MAX = 1_024
JOB_DIGEST_BYTES = 12
SPEC_KEYS = frozenset(
    {
        "name", "data", "delay_ms", "delay", "attempts", "backoff",
        "job_id", "expires_ms", "timeout_ms", "repeat", "missed_fires",
    }
)  # fmt: skip


class NewJob(msgspec.Struct, frozen=True, gc=False):
    """A job that is checked and has its payload packed; its envelope is spelled as it leaves.

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


class JobSpeller:
    """Checks and spells jobs of one queue."""

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

    def spell(self, spec: JobSpec, fresh_id: str, now_ms: int) -> NewJob:
        """One job from a mapping of at least name and data; KeyError names what is missing."""
        # Nearly every bulk is made of plain names and data.
        if len(spec) == 2:
            return self.plain(spec["name"], spec["data"], fresh_id, now_ms)
        check_keys(spec)
        name, payload = check_job_name(spec["name"]), self.payload(spec["data"])
        own_id = spec.get("job_id")
        job_id = fresh_id if own_id is None else check_job_id(own_id)
        retry = retry_override(spec.get("attempts"), spec.get("backoff"))
        wait = wait_of(spec.get("delay_ms"), spec.get("delay"), self._delay_s_max, now_ms)
        digest = job_digest(name, payload) if own_id else ""
        return NewJob(job_id, name, payload, now_ms, retry, _extras(spec), digest, wait)

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


def _are_all_in(good_names: set[str], names: Sequence[Any]) -> bool:
    # What is no text may equal one, or have no hash.
    return set(map(type, names)) == {str} and good_names.issuperset(names)


def raw_payload(data: Any) -> bytes:
    """Bytes as they are, for callers who encode their own."""
    if not isinstance(data, bytes):
        raise TypeError(f"a payload must be bytes, got {data!r:.100}")
    return bytes(data)


def _extras(spec: JobSpec) -> dict[str, Any] | None:
    extras: dict[str, Any] = {}
    for key in ("expires_ms", "timeout_ms"):
        value = optional_ms(key, spec.get(key))
        if value is not None:
            extras[key] = value
    return extras or None


def check_keys(spec: JobSpec) -> None:
    """Refuse a job with a key that means nothing."""
    unknown = spec.keys() - SPEC_KEYS
    if unknown:
        rule = f"made of {', '.join(sorted(SPEC_KEYS))}"
        raise SettingsError("a job", sorted(map(str, unknown)), rule)


def job_digest(name: str, payload: bytes) -> str:
    """What tells two jobs of one id apart."""
    spelled = name.encode()
    # A name that holds the mark between name and payload says how long it is.
    person = b"%d" % len(spelled) if b"\0" in spelled else b""
    hashed = blake2b(spelled + b"\0" + payload, digest_size=JOB_DIGEST_BYTES, person=person)
    return hashed.hexdigest()
