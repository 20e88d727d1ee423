"""Queue: add jobs and look at what became of them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, Literal

from chasquimq.errors import IdConflict, PayloadTooLarge, SettingsError, StoreError
from chasquimq.job import Job
from chasquimq.model.options import BackoffLike, optional_ms, retry_override, whole_number
from chasquimq.settings import (
    DEFAULT_URL,
    AbilitySettings,
    ConnectionSettings,
    CredentialProvider,
    ProducerSettings,
)
from chasquimq.store.add_write import AddMark, NewJob
from chasquimq.store.address import normal_url
from chasquimq.store.inspecting import Counts, InspectorStore
from chasquimq.store.producing import ProducerStore
from chasquimq.wire.codec import encode_envelope, encode_payload
from chasquimq.wire.job_id import new_job_id, new_job_ids
from chasquimq.wire.names import check_job_id, check_job_name, check_queue_name

__all__ = ["BackoffLike", "CredentialProvider", "Queue"]

OnConflict = Literal["keep", "raise"]
_BULK_KEYS = frozenset(
    {"name", "data", "attempts", "backoff", "job_id", "expires_ms", "timeout_ms"}
)


class Queue:
    """The producing side of one queue; connects when first used."""

    def __init__(
        self,
        name: str,
        *,
        redis_url: str = DEFAULT_URL,
        tls: bool = False,
        max_stream_len: int | None = None,
        max_delay_secs: int | None = None,
        credential_provider: CredentialProvider | None = None,
        insecure_tls: bool = False,
        max_payload_bytes: int | None = None,
        unique_for_ms: int | None = None,
        resend: bool = True,
        command_timeout_ms: int | None = None,
        abilities: AbilitySettings | None = None,
    ) -> None:
        self._name = check_queue_name(name)
        self._settings = ProducerSettings(
            max_stream_len=max_stream_len,
            resend=resend,
            **_given(
                max_delay_secs=max_delay_secs,
                max_payload_bytes=max_payload_bytes,
                unique_for_ms=unique_for_ms,
            ),
        )
        self._connection = ConnectionSettings(
            url=normal_url(redis_url, tls=tls),
            insecure_tls=insecure_tls,
            credential_provider=credential_provider,
            **_given(command_timeout_ms=command_timeout_ms),
        )
        self._abilities = abilities or AbilitySettings()
        self._opened: ProducerStore | None = None
        self._is_closed = False

    @property
    def name(self) -> str:
        return self._name

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    async def __aenter__(self) -> Queue:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def add(
        self,
        name: str,
        data: Any,
        *,
        attempts: int | None = None,
        backoff: int | float | BackoffLike | Mapping[str, Any] | None = None,
        job_id: str | None = None,
        expires_ms: int | None = None,
        timeout_ms: int | None = None,
        unique_for_ms: int | None = None,
        on_conflict: OnConflict = "keep",
    ) -> Job:
        """Add one job; it is in the queue when this returns.

        With a `job_id` the first job of that id within `unique_for_ms` is kept, and the job
        returned says so in `is_duplicate`.

        Raises:
            SettingsError, EncodeError, PayloadTooLarge: refused before anything was written.
            IdConflict: the id is taken by another job and `on_conflict` is "raise".
            QueueFull, ServerOutOfMemory, ConnectionLost: the server could not take it.
        """
        now_ms = _now_ms()
        unique_ms = self._unique_ms(unique_for_ms)
        spec = {
            "name": name, "data": data, "attempts": attempts, "backoff": backoff,
            "job_id": job_id, "expires_ms": expires_ms, "timeout_ms": timeout_ms,
        }  # fmt: skip
        new = self._new_job(spec, new_job_id(now_ms) if job_id is None else job_id, now_ms)
        mark = await self._store().add(new, unique_ms)
        _raise_conflicts(on_conflict, [new], [mark])
        return self._job(new, data, now_ms, mark)

    async def add_unique(
        self, name: str, data: Any, *, job_id: str, **options: Any
    ) -> Job:
        """Add a job under an id of your own; a second add of the id keeps the first job."""
        if job_id is None:  # pyright: ignore[reportUnnecessaryComparison]  callers lie
            raise SettingsError("job_id", job_id, "a non-blank string")
        return await self.add(name, data, job_id=job_id, **options)

    async def add_bulk(
        self,
        jobs: Sequence[Mapping[str, Any]],
        *,
        unique_for_ms: int | None = None,
        on_conflict: OnConflict = "keep",
    ) -> list[Job]:
        """Add many jobs in as few writes as possible; each mapping has at least name and data.

        All jobs are checked before the first is written. Larger bulks leave in several
        writes, so an error may come after some were added: its `job_ids` names the others.
        """
        now_ms = _now_ms()
        unique_ms = self._unique_ms(unique_for_ms)
        fresh = new_job_ids(len(jobs), now_ms)
        new = [
            self._new_bulk_job(at, spec, job_id, now_ms)
            for at, (spec, job_id) in enumerate(zip(jobs, fresh, strict=True))
        ]
        if not new:
            return []
        marks = await self._store().add_many(new, unique_ms)
        _raise_conflicts(on_conflict, new, marks)
        return [
            self._job(one, spec["data"], now_ms, mark)
            for one, spec, mark in zip(new, jobs, marks, strict=True)
        ]

    async def counts(self) -> Counts:
        """How many jobs are ready, running, delayed and dead."""
        return await InspectorStore(self._name, self._store().link).counts()

    async def close(self) -> None:
        """Close the connection; a closed queue refuses every further call."""
        self._is_closed = True
        if self._opened is not None:
            await self._opened.close()

    def _store(self) -> ProducerStore:
        if self._is_closed:
            raise StoreError(f"queue {self._name!r} is closed; open a new Queue")
        if self._opened is None:
            self._opened = ProducerStore(
                self._name, self._connection, self._settings, self._abilities
            )
        return self._opened

    def _new_bulk_job(
        self, at: int, spec: Mapping[str, Any], fresh_id: str, now_ms: int
    ) -> NewJob:
        try:
            # Nearly every bulk is made of plain names and data.
            if type(spec) is dict and len(spec) == 2:
                return self._plain_job(spec["name"], spec["data"], fresh_id, now_ms)
            _check_bulk_keys(spec)
            own_id = spec.get("job_id")
            return self._new_job(spec, fresh_id if own_id is None else own_id, now_ms)
        except KeyError as error:
            raise SettingsError(
                f"jobs[{at}]", sorted(spec), f"a mapping with {error.args[0]!r}"
            ) from None

    def _plain_job(self, name: str, data: Any, job_id: str, now_ms: int) -> NewJob:
        payload = encode_payload(data)
        if len(payload) > self._settings.max_payload_bytes:
            raise PayloadTooLarge(len(payload), self._settings.max_payload_bytes)
        return NewJob(job_id, check_job_name(name), encode_envelope(job_id, payload, now_ms))

    def _new_job(self, spec: Mapping[str, Any], job_id: str, now_ms: int) -> NewJob:
        name = check_job_name(spec["name"])
        payload = encode_payload(spec["data"])
        if len(payload) > self._settings.max_payload_bytes:
            raise PayloadTooLarge(len(payload), self._settings.max_payload_bytes)
        retry = retry_override(spec.get("attempts"), spec.get("backoff"))
        extras = _extras(spec)
        if spec.get("job_id") is None:
            envelope = encode_envelope(job_id, payload, now_ms, 0, retry, extras)
            return NewJob(job_id, name, envelope)
        job_id = check_job_id(job_id)
        envelope = encode_envelope(job_id, payload, now_ms, 0, retry, extras)
        return NewJob(job_id, name, envelope, _digest(name, payload))

    def _unique_ms(self, unique_for_ms: int | None) -> int:
        if unique_for_ms is None:
            return self._settings.unique_for_ms
        return whole_number("unique_for_ms", unique_for_ms, 1)

    def _job(self, new: NewJob, data: Any, now_ms: int, mark: AddMark) -> Job:
        return Job(new.job_id, new.name, data, 0, now_ms, mark is not AddMark.ADDED, self)


def _extras(spec: Mapping[str, Any]) -> dict[str, Any] | None:
    expires_ms = optional_ms("expires_ms", spec.get("expires_ms"))
    timeout_ms = optional_ms("timeout_ms", spec.get("timeout_ms"))
    extras = _given(expires_ms=expires_ms, timeout_ms=timeout_ms)
    return extras or None


def _check_bulk_keys(spec: Mapping[str, Any]) -> None:
    unknown = set(spec) - _BULK_KEYS
    if unknown:
        raise SettingsError("jobs", sorted(unknown), f"made of {', '.join(sorted(_BULK_KEYS))}")


def _raise_conflicts(
    on_conflict: OnConflict, jobs: Sequence[NewJob], marks: Sequence[AddMark]
) -> None:
    if on_conflict == "keep":
        return
    if on_conflict != "raise":
        raise SettingsError("on_conflict", on_conflict, '"keep" or "raise"')
    taken = [
        job.job_id
        for job, mark in zip(jobs, marks, strict=True)
        if mark is AddMark.CONFLICT
    ]
    if taken:
        raise IdConflict(taken)


def _digest(name: str, payload: bytes) -> str:
    return blake2b(name.encode() + b"\0" + payload, digest_size=12).hexdigest()


def _given(**values: int | None) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
