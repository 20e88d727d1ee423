"""Takes snapshots of queues for the command line and dashboards; moves no job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Self

from chasquimq.errors import ServerRefused, StoreError
from chasquimq.model.diagnosis import Diagnosis, check_server
from chasquimq.model.job_options import optional_ms, whole_number
from chasquimq.model.queue_diagnosis import check_queue, check_rights, check_types
from chasquimq.model.snapshot import (
    DelayedJob,
    GroupUse,
    JobState,
    Snapshot,
    Survey,
    WorkerSnapshot,
    WrongType,
    group_conflict,
)
from chasquimq.settings import (
    CredentialProvider,
    LeaseSettings,
)
from chasquimq.store.inspect.diagnose import DiagnosingStore
from chasquimq.store.inspect.job_matcher import JobBytes
from chasquimq.store.inspect.pages import DelayedListing, ReadStore
from chasquimq.store.inspect.queue import (
    Advance,
    InspectorStore,
    KeyScan,
    read_snapshot,
    snapshot_questions,
)
from chasquimq.store.net.address import check_found, connection_settings, own_lookup
from chasquimq.store.net.cluster import Answers, ClusterConnections, Master
from chasquimq.store.net.per_loop import PerLoop
from chasquimq.store.net.reconnect import ReconnectingConnection
from chasquimq.store.upkeep import JanitorStore
from chasquimq.wire.keys import QueueKeys, check_group_name, check_many, check_queue_name
from chasquimq.wire.outcome import Contents, open_envelope

__all__ = [
    "Advance",
    "Contents",
    "Inspector",
    "Survey",
    "check_found",
    "check_group_name",
    "check_queue_name",
    "open_envelope",
]

DEFAULT_GROUP = "default"
OnMissed = Callable[[StoreError], None]
LEASE_MS = LeaseSettings().lease_ms


class Inspector:
    """Looks at every queue of one server or cluster; connections are opened on first use."""

    def __init__(
        self,
        *,
        redis_url: str | None = None,
        tls: bool = False,
        credential_provider: CredentialProvider | None = None,
        insecure_tls: bool = False,
        command_timeout_ms: int | None = None,
    ) -> None:
        connection = connection_settings(
            redis_url,
            tls=tls,
            insecure_tls=insecure_tls,
            credential_provider=credential_provider,
            command_timeout_ms=optional_ms("command_timeout_ms", command_timeout_ms),
        )
        self._loops = PerLoop(
            lambda: ClusterConnections(own_lookup(connection), name="chasqui-inspector")
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._loops.close()

    @property
    def _connections(self) -> ClusterConnections:
        return self._loops.here()

    async def queues(
        self, advance: Advance | None = None, *, on_missed: OnMissed | None = None
    ) -> list[str]:
        """The names of all queues; `advance` gets the number of keys seen, and of all keys.

        A master of a cluster that does not answer is raised, or passed to `on_missed`.
        """
        if not self._connections.is_cluster:
            return await KeyScan(_reads(await self._connections.of(""))).queue_names(advance)
        names: set[str] = set()
        async with self._connections.masters() as masters:
            for master in masters:
                try:
                    names.update(await KeyScan(_reads(master.connection)).queue_names(advance))
                except StoreError as error:
                    if on_missed is None:
                        raise
                    on_missed(error)
        return sorted(names)

    async def survey_all(
        self, group: str = DEFAULT_GROUP, advance: Advance | None = None
    ) -> Survey:
        """All queues there are; a master of a cluster that does not answer hides only its own.

        Raises:
            StoreError: no server could be asked.
        """
        missed: list[StoreError] = []
        survey = await self.survey(await self.queues(advance, on_missed=missed.append), group)
        survey.missed.extend(missed)
        if missed and not survey.snapshots and not survey.broken:
            raise missed[0]
        return survey

    async def snapshot(self, queue: str, group: str = DEFAULT_GROUP) -> Snapshot:
        """How much is where, in one round trip.

        Raises:
            StoreError: a key of the queue holds another kind of value; the message names it.
        """
        survey = await self.survey([queue], group)
        for wrong in survey.broken:
            raise StoreError(f"{wrong}; rename or delete the key")
        for error in survey.unseen.values():
            raise error
        return survey.snapshots[0]

    async def survey(self, queues: Sequence[str], group: str = DEFAULT_GROUP) -> Survey:
        """The same for many queues, in their order; one that is broken hides no other.

        Raises:
            StoreError: none of them could be asked about.
        """
        check_group_name(group)
        many = check_many("queues", queues, "a list of queue names", hint="for one, pass [queue]")
        keys = list(map(QueueKeys, many))
        found = Survey([], [], [], {}, [])
        asked = [(one.queue, snapshot_questions(one, group)) for one in keys]
        for one, replies in zip(keys, await self._connections.ask_each(asked), strict=True):
            await self._note(found, one.queue, group, replies)
        if len(found.unseen) == len(keys) > 0:
            raise found.unseen[keys[0].queue]
        return found

    async def workers(self, queue: str, group: str = DEFAULT_GROUP) -> list[WorkerSnapshot]:
        """The consumers of a group, the dead ones included."""
        check_group_name(group)
        return await InspectorStore(queue, await self._connections.of(queue), group).workers()

    async def groups(self, queue: str) -> list[GroupUse]:
        """The consumer groups of a queue, with their live consumers and pending jobs."""
        return await (await self._facts(queue)).groups(QueueKeys(queue))

    async def refuse_conflict(self, queue: str, group: str) -> None:
        """Refuse a group while another one consumes the queue, as a worker that joins is.

        Raises:
            GroupConflict: another group has live consumers or pending jobs.
        """
        groups = await self.groups(queue)
        others = [one for one in groups if one.is_used and one.name != group]
        if others:
            raise group_conflict(queue, group, others)

    async def remove_group(self, queue: str, group: str, *, force: bool = False) -> GroupUse | None:
        """Remove a consumer group and answer who used it; None where it is not there.

        No job is lost: what the group held is delivered again, by the group that is used next.

        Raises:
            StoreError: the group is in use and stays; `force` removes it all the same.
        """
        connection = await self._connections.of(queue)
        return await JanitorStore(queue, group, connection).remove_group(force=force)

    async def delayed(self, queue: str, limit: int = 20) -> list[DelayedJob]:
        """The delayed jobs that are due first."""
        whole_number("limit", limit, 0)
        keys, connection = QueueKeys(queue), await self._connections.of(queue)
        return await DelayedListing(keys, _reads(connection)).soonest(limit)

    async def contents(self, queue: str, state: JobState) -> Contents | None:
        """What a job that `Queue.get_job` found carries; None where it left nothing to read."""
        keys, connection = QueueKeys(queue), await self._connections.of(queue)
        raw = await JobBytes(keys, _reads(connection)).envelope(state)
        return None if raw is None else open_envelope(raw)

    async def wrong_types(self, queue: str) -> list[WrongType]:
        """Keys of the queue that hold another kind of value than they must."""
        return await (await self._facts(queue)).wrong_types(QueueKeys(queue))

    async def diagnose_server(self) -> list[Diagnosis]:
        """Whether the promises of a queue can be kept on this server, or on each of a cluster."""
        if not self._connections.is_cluster:
            return check_server(await (await self._facts("")).server())
        async with self._connections.masters() as masters:
            return [finding for master in masters for finding in await _diagnose(master)]

    async def diagnose_queue(
        self, queue: str, group: str = DEFAULT_GROUP, lease_ms: int = LEASE_MS
    ) -> list[Diagnosis]:
        """Check whether a worker works on the queue, and whether anything in it is stuck or lost."""
        keys, store = QueueKeys(queue), await self._facts(queue)
        lacking = await store.lacking_rights(keys)
        try:
            findings = await _look_at(store, keys, check_group_name(group), lease_ms)
        except ServerRefused as refused:
            # One of them says it all: a user that may not look at a queue cannot work on it either.
            raise refused if lacking is None or refused.code != lacking.code else lacking from None
        return _about(queue, [*(check_rights(str(lacking)) if lacking else ()), *findings])

    async def _note(self, found: Survey, queue: str, group: str, replies: Answers) -> None:
        if isinstance(replies, StoreError):
            found.unseen[queue] = replies
            return
        try:
            found.snapshots.append(read_snapshot(queue, group, replies))
        except ServerRefused as refused:
            if refused.code != "WRONGTYPE":
                raise
            found.broken_queues.append(queue)
            found.broken.extend(await self.wrong_types(queue))

    async def _facts(self, queue: str) -> DiagnosingStore:
        connection = await self._connections.of(queue)
        return DiagnosingStore(connection, _reads(connection))


async def _look_at(
    store: DiagnosingStore, keys: QueueKeys, group: str, lease_ms: int
) -> list[Diagnosis]:
    wrong = await store.wrong_types(keys)
    if wrong:
        return check_types(wrong)
    return check_queue(await store.queue(keys, group), lease_ms)


def _about(queue: str, findings: list[Diagnosis]) -> list[Diagnosis]:
    return [replace(finding, queue=queue) for finding in findings]


async def _diagnose(master: Master) -> list[Diagnosis]:
    """The findings of one node, each with its address."""
    facts = await DiagnosingStore(master.connection, _reads(master.connection)).server(master.holds)
    return [
        replace(finding, found=f"{master.address}: {finding.found}")
        for finding in check_server(facts)
    ]


def _reads(connection: ReconnectingConnection) -> ReadStore:
    return ReadStore(connection)
