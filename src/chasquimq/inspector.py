"""Inspector: snapshots for the command line and dashboards; reads, never moves."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple, Self

import msgspec

from chasquimq.errors import DecodeError, ServerRefused, StoreError
from chasquimq.model.finding import Finding
from chasquimq.model.job_state import JobState
from chasquimq.model.options import whole_number
from chasquimq.model.queue_facts import check_queue, check_types
from chasquimq.model.server_facts import check_server
from chasquimq.model.snapshot import DelayedJob, Snapshot, WorkerSnapshot, WrongType
from chasquimq.settings import (
    DEFAULT_URL,
    ConnectionSettings,
    CredentialProvider,
    LeaseSettings,
    ProducerSettings,
)
from chasquimq.store.address import normal_url
from chasquimq.store.connection import pack
from chasquimq.store.delayed_listing import DelayedListing
from chasquimq.store.diagnosing import DiagnosingStore
from chasquimq.store.inspecting import InspectorStore, read_snapshot, snapshot_questions
from chasquimq.store.job_bytes import JobBytes
from chasquimq.store.link import Link
from chasquimq.store.reading import ReadStore
from chasquimq.store.scanning import Advance, KeyScan
from chasquimq.wire.codec import decode_payload, split_envelope
from chasquimq.wire.keys import QueueKeys
from chasquimq.wire.names import check_group_name, check_queue_name

__all__ = [
    "Advance",
    "Contents",
    "Inspector",
    "Survey",
    "check_group_name",
    "check_queue_name",
    "open_envelope",
]

DEFAULT_GROUP = "default"
LEASE_MS = LeaseSettings().lease_ms
# Heavy answers are asked for in portions that nobody has to wait for.
_SNAPSHOTS_PER_WRITE = 50


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """What is inside an envelope; `data` means nothing where `is_decoded` is False.

    Native producers may add any bytes: then `payload` is all that there is.
    """

    job_id: str
    created_at_ms: int
    attempt: int
    payload: bytes
    data: Any
    is_decoded: bool
    extras: dict[str, Any]


class Survey(NamedTuple):
    """Snapshots of many queues, keys that kept others from being looked at, and those others."""

    snapshots: list[Snapshot]
    broken: list[WrongType]
    broken_queues: list[str]


class Inspector:
    """Looks at every queue of one server, over one connection that is opened on first use."""

    def __init__(
        self,
        *,
        redis_url: str = DEFAULT_URL,
        tls: bool = False,
        credential_provider: CredentialProvider | None = None,
        insecure_tls: bool = False,
    ) -> None:
        connection = ConnectionSettings(
            url=normal_url(redis_url, tls=tls),
            insecure_tls=insecure_tls,
            credential_provider=credential_provider,
        )
        self._link = Link(connection, name="chasqui-inspector")
        self._reads = ReadStore(self._link, ProducerSettings().resend_within_ms)
        self._facts = DiagnosingStore(self._link, self._reads)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._link.close()

    async def queues(self, advance: Advance | None = None) -> list[str]:
        """The names of all queues; `advance` hears how many keys were seen, and of how many."""
        return await KeyScan(self._reads).queue_names(advance)

    async def snapshot(self, queue: str, group: str = DEFAULT_GROUP) -> Snapshot:
        """How much is where, in one round trip.

        Raises:
            StoreError: a key of the queue holds another kind of value; the message names it.
        """
        survey = await self.survey([queue], group)
        for wrong in survey.broken:
            raise StoreError(f"{wrong}; rename or delete the key")
        return survey.snapshots[0]

    async def survey(self, queues: Sequence[str], group: str = DEFAULT_GROUP) -> Survey:
        """The same for many queues, in their order; one that is broken hides no other."""
        check_group_name(group)
        keys = list(map(QueueKeys, queues))
        found = Survey([], [], [])
        for at in range(0, len(keys), _SNAPSHOTS_PER_WRITE):
            await self._survey(keys[at : at + _SNAPSHOTS_PER_WRITE], group, found)
        return found

    async def workers(self, queue: str, group: str = DEFAULT_GROUP) -> list[WorkerSnapshot]:
        """The consumers of a group, the dead ones included."""
        return await InspectorStore(queue, self._link, check_group_name(group)).workers()

    async def delayed(self, queue: str, limit: int = 20) -> list[DelayedJob]:
        """The delayed jobs that are due first."""
        whole_number("limit", limit, 0)
        return await DelayedListing(QueueKeys(queue), self._reads).soonest(limit)

    async def contents(self, queue: str, state: JobState) -> Contents | None:
        """What a job that `Queue.get_job` found carries; None where it left nothing to read."""
        raw = await JobBytes(QueueKeys(queue), self._reads).envelope(state)
        return None if raw is None else open_envelope(raw)

    async def wrong_types(self, queue: str) -> list[WrongType]:
        """Keys of the queue that hold another kind of value than they must."""
        return await self._facts.wrong_types(QueueKeys(queue))

    async def diagnose_server(self) -> list[Finding]:
        """Whether the promises of a queue can be kept on this server."""
        return check_server(await self._facts.server())

    async def diagnose_queue(
        self, queue: str, group: str = DEFAULT_GROUP, lease_ms: int = LEASE_MS
    ) -> list[Finding]:
        """Whether somebody works on the queue, and whether anything is stuck or lost in it."""
        keys = QueueKeys(queue)
        wrong = await self._facts.wrong_types(keys)
        if wrong:
            return _about(queue, check_types(wrong))
        facts = await self._facts.queue(keys, check_group_name(group))
        return _about(queue, check_queue(facts, lease_ms))

    async def _survey(self, keys: Sequence[QueueKeys], group: str, found: Survey) -> None:
        questions = [snapshot_questions(one, group) for one in keys]
        request = b"".join(pack(question) for asked in questions for question in asked)
        replies = iter(await self._link.ask(request, sum(map(len, questions))))
        for one, asked in zip(keys, questions, strict=True):
            own = list(islice(replies, len(asked)))
            try:
                found.snapshots.append(read_snapshot(one.queue, group, own))
            except ServerRefused as refused:
                if refused.code != "WRONGTYPE":
                    raise
                found.broken_queues.append(one.queue)
                found.broken.extend(await self._facts.wrong_types(one))


def open_envelope(raw: bytes) -> Contents | None:
    """Read an envelope and its payload; None where the envelope itself cannot be read."""
    try:
        envelope, extras = split_envelope(raw)
    except DecodeError:
        return None
    data, is_decoded = _decoded(envelope.payload)
    return Contents(
        job_id=envelope.id,
        created_at_ms=envelope.created_at_ms,
        attempt=envelope.attempt,
        payload=envelope.payload,
        data=data,
        is_decoded=is_decoded,
        extras=extras or {},
    )


def _decoded(payload: bytes) -> tuple[Any, bool]:
    try:
        return decode_payload(payload), True
    except DecodeError:
        return None, False


def _about(queue: str, findings: list[Finding]) -> list[Finding]:
    return [msgspec.structs.replace(finding, queue=queue) for finding in findings]
